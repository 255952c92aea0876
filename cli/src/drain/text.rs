//! What people read of an instance.

use cobalt_api::eviction::EvictionInstance;

use crate::text::clean;

/// The name of an instance, or its id.
pub fn name(row: &EvictionInstance) -> String {
    let name = row.name.as_deref().filter(|name| !name.is_empty());
    clean(name.unwrap_or(&row.id))
}

/// Why an instance cannot be moved, or what went wrong last.
pub fn reason(row: &EvictionInstance) -> String {
    if let Some(error) = row.error.as_deref().filter(|error| !error.is_empty()) {
        return clean(error);
    }
    let findings = row.preflight.iter().flat_map(|found| &found.reasons);
    let all: Vec<String> = findings
        .map(|finding| match finding.message.as_deref() {
            Some(message) if !message.is_empty() => format!("{}: {message}", finding.reason),
            _ => finding.reason.clone(),
        })
        .collect();
    clean(&all.join("; "))
}

#[cfg(test)]
mod tests {
    use cobalt_api::eviction::{Preflight, PreflightFinding, Verdict};

    use super::*;

    #[test]
    fn the_reason_is_the_error_or_the_findings() {
        let finding = |reason: &str, message: Option<&str>| PreflightFinding {
            reason: reason.to_owned(),
            message: message.map(str::to_owned),
        };
        let mut row = EvictionInstance::new("id");
        assert_eq!(reason(&row), "");
        assert_eq!(name(&row), "id");
        row.preflight = Some(Preflight {
            verdict: Verdict::Blocked,
            hosts: Some(0),
            reasons: vec![
                finding("NoCapacity", Some("no host\nhas room")),
                finding("Locked", None),
            ],
        });
        assert_eq!(reason(&row), "NoCapacity: no host has room; Locked");
        row.error = Some("it broke".to_owned());
        assert_eq!(reason(&row), "it broke");
    }
}
