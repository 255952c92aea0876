//! Who holds resources of a host in Placement, and whether that is for something that still exists.

use cobalt_openstack::compute::{Migration, Server, ServerStatus};

/// Whether a migration that holds something of `host` in Placement may still need it. `server` is
/// the server of the migration, `None` if Nova has none.
///
/// The record alone does not say: nobody ends the record of a migration whose driver died. What
/// counts is whether its server can still be, or come back to, where the migration holds resources.
#[must_use]
pub fn migration_is_alive(migration: &Migration, server: Option<&Server>, host: &str) -> bool {
    let Some(server) = server else {
        return false;
    };
    match &server.status {
        ServerStatus::Deleted => return false,
        // A revert brings it back. Of a state that Nova cannot tell nothing is concluded.
        ServerStatus::VerifyResize
        | ServerStatus::Resize
        | ServerStatus::RevertResize
        | ServerStatus::Unknown => return true,
        _ => {}
    }
    if server.host.as_deref() == Some(host) {
        // It may be what the server itself uses: a migration that was lost gives nothing back.
        return true;
    }
    let busy = server
        .task_state
        .as_deref()
        .is_some_and(|task| !task.is_empty());
    let idle = !busy && server.status != ServerStatus::Migrating;
    !(migration.status.has_ended() || idle)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_migration_that_nobody_ended_is_dead_once_its_server_lives_elsewhere() {
        // The record, the server's status, task and host, and whether the migration is alive.
        for (record, status, task, host, alive) in [
            ("running", "ACTIVE", None, "hv2", false),
            ("accepted", "SHUTOFF", None, "hv2", false),
            ("error", "ACTIVE", None, "hv2", false),
            ("completed", "ACTIVE", Some("rebooting"), "hv2", false),
            ("running", "MIGRATING", Some("migrating"), "hv2", true),
            ("running", "ACTIVE", Some("rebooting"), "hv2", true),
            ("running", "MIGRATING", Some("migrating"), "hv1", true),
            ("error", "ACTIVE", None, "hv1", true),
            // A resize that waits for its owner has ended, and may be taken back.
            ("finished", "VERIFY_RESIZE", None, "hv2", true),
            (
                "finished",
                "REVERT_RESIZE",
                Some("resize_reverting"),
                "hv2",
                true,
            ),
            ("confirmed", "SHUTOFF", None, "hv2", false),
            ("running", "UNKNOWN", None, "hv2", true),
            ("running", "DELETED", None, "hv2", false),
        ] {
            let migration = serde_json::from_value(json!({
                "id": 1, "instance_uuid": "a", "status": record, "source_compute": "hv1",
            }));
            let server = serde_json::from_value(json!({
                "id": "a", "status": status, "OS-EXT-STS:task_state": task,
                "OS-EXT-SRV-ATTR:host": host,
            }));
            let (migration, server): (Migration, Server) = (migration.unwrap(), server.unwrap());
            let judged = migration_is_alive(&migration, Some(&server), "hv1");
            assert_eq!(judged, alive, "{record} {status} {host}");
            assert!(!migration_is_alive(&migration, None, "hv1"));
        }
    }
}
