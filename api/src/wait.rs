//! What something waits for.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is being waited for, since when, and until when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// What is waited for, as one CamelCase word.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// The same for people, with names and numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// When the wait began.
    pub since: Time,
    /// When the wait ends in failure. Absent if it may last for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
}
