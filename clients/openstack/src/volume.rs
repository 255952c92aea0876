//! Cinder: a volume type by id or by exactly its name.

use http::Method;
use serde::Deserialize;

use crate::client::{Ask, Client};
use crate::compute::one;
use crate::decode::or_default;
use crate::error::{Result, found};
use crate::image::is_uuid;
use crate::query::{Query, at};
use crate::service::Service;

/// A kind of volumes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct VolumeType {
    /// Its id.
    pub id: String,
    /// Unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Whether every project may use it.
    #[serde(default, deserialize_with = "or_default")]
    pub is_public: bool,
}

impl Client {
    /// A volume type by its id.
    pub async fn volume_type(&self, id: &str) -> Result<VolumeType> {
        let path = at!("types", id);
        let ask = Ask::new(Service::Volume, Method::GET, "show volume type", path);
        self.ask(ask).await?.read("volume_type")
    }

    /// A volume type by its id or, if none has it, by exactly its name.
    pub async fn find_volume_type(&self, id_or_name: &str) -> Result<Option<VolumeType>> {
        if is_uuid(id_or_name)
            && let Some(kind) = found(self.volume_type(id_or_name).await)?
        {
            return Ok(Some(kind));
        }
        let list = |query| {
            let path = at!("types");
            Ask::new(Service::Volume, Method::GET, "list volume types", path).query(query)
        };
        // Else an administrator is shown the public ones alone.
        let query = Query::new().with("is_public", "None");
        let types: Vec<VolumeType> = self.list(list, query, "volume_types").await?;
        let named = types.into_iter().filter(|kind| kind.name == id_or_name);
        one("volume types", id_or_name, named)
    }
}
