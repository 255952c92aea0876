//! When Nova, or the agent of the host, last did something about the migration of a server.
//!
//! Nova keeps a server in the task `migrating` for ever if the process that drove the migration
//! dies: with no migration record if nova-conductor died before it made one, else with a record that
//! nobody changes any more. Both are told from a migration that goes on by the absence of changes.
//! Nova's own times are compared with each other only, never with our clock.

use std::collections::BTreeMap;

use cobalt_openstack::compute::{Migration, MigrationStatus, ServerMigration};
use jiff::Timestamp;

/// The last sign of life, by server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signs(BTreeMap<String, Sign>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Sign {
    at: Timestamp,
    record: Option<Record>,
}

/// What of a migration record changes while somebody drives the migration: nova-compute saves how
/// much was sent every few seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The id of the migration.
    pub id: i64,
    /// How far it is.
    pub status: MigrationStatus,
    /// When it changed last, by Nova's clock.
    pub updated_at: Option<Timestamp>,
}

impl From<&Migration> for Record {
    fn from(one: &Migration) -> Self {
        Self {
            id: one.id,
            status: one.status.clone(),
            updated_at: one.updated_at,
        }
    }
}

impl From<&ServerMigration> for Record {
    fn from(one: &ServerMigration) -> Self {
        Self {
            id: one.id,
            status: one.status.clone(),
            updated_at: one.updated_at,
        }
    }
}

impl Signs {
    /// Nova listed migrations, the newest first. A record that has changed is a sign.
    pub fn listed(&mut self, migrations: &[Migration], at: Timestamp) {
        let mut newest: BTreeMap<&str, &Migration> = BTreeMap::new();
        for one in migrations {
            newest.entry(&one.server).or_insert(one);
        }
        for (server, one) in newest {
            if one.status.has_ended() {
                self.0.remove(server);
            } else {
                self.changed(server, Some(one.into()), at);
            }
        }
    }

    /// Nova was asked about the migration of one server that is under way. No record is no sign.
    pub fn probed(&mut self, server: &str, record: Option<Record>, at: Timestamp) {
        if record.is_some() {
            self.changed(server, record, at);
        }
    }

    /// The agent of the host sees that libvirt migrates the guest.
    pub fn heard(&mut self, server: &str, at: Timestamp) {
        let sign = self.0.entry(server.to_owned());
        sign.or_insert(Sign { at, record: None }).at = at;
    }

    /// A new attempt begins: what was seen of the one before says nothing about it.
    pub fn forget(&mut self, server: &str) {
        self.0.remove(server);
    }

    /// No nova-conductor runs: requests may lie in its queue. They get their time once one runs.
    pub fn hold(&mut self, server: &str, at: Timestamp) {
        self.heard(server, at);
    }

    /// The last sign of life of a server's migration.
    #[must_use]
    pub fn last(&self, server: &str) -> Option<Timestamp> {
        self.0.get(server).map(|sign| sign.at)
    }

    /// The last sign of life of any migration that has got beyond nova-compute's queue.
    #[must_use]
    pub fn last_ahead_of_queue(&self) -> Option<Timestamp> {
        let ahead = |sign: &&Sign| {
            let record = sign.record.as_ref();
            record.is_some_and(|record| record.status != MigrationStatus::Queued)
        };
        self.0.values().filter(ahead).map(|sign| sign.at).max()
    }

    fn changed(&mut self, server: &str, record: Option<Record>, at: Timestamp) {
        match self.0.get_mut(server) {
            Some(sign) if sign.record == record => {}
            Some(sign) => *sign = Sign { at, record },
            None => {
                self.0.insert(server.to_owned(), Sign { at, record });
            }
        }
    }
}

/// What Nova said when it was asked about a server whose migration gives no sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The live migration that Nova says is under way.
    pub migration: Option<Record>,
    /// A nova-conductor runs, or Nova lists none at all.
    pub conductor: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn migration(id: i64, server: &str, status: &str, changed: i64) -> Migration {
        serde_json::from_value(json!({
            "id": id, "instance_uuid": server, "status": status,
            "updated_at": at(changed).to_string(),
        }))
        .unwrap()
    }

    #[test]
    fn only_a_change_is_a_sign_of_life() {
        let mut signs = Signs::default();
        signs.listed(&[migration(1, "a", "running", 7)], at(100));
        assert_eq!(signs.last("a"), Some(at(100)), "it is new to us");
        signs.listed(&[migration(1, "a", "running", 7)], at(200));
        assert_eq!(signs.last("a"), Some(at(100)), "nothing has changed");
        // Nova's clock may be wrong, or be set back: any change counts.
        signs.listed(&[migration(1, "a", "running", 3)], at(300));
        assert_eq!(signs.last("a"), Some(at(300)));
        let same = Record::from(&migration(1, "a", "running", 3));
        signs.probed("a", Some(same), at(400));
        assert_eq!(signs.last("a"), Some(at(300)));
        signs.probed("a", None, at(500));
        assert_eq!(signs.last("a"), Some(at(300)), "no record is no sign");
        signs.heard("a", at(600));
        assert_eq!(signs.last("a"), Some(at(600)));
        signs.listed(&[migration(1, "a", "error", 9)], at(700));
        assert_eq!(signs.last("a"), None, "it has ended");
    }

    #[test]
    fn what_waits_in_the_queue_of_nova_compute_says_nothing_of_others() {
        let mut signs = Signs::default();
        signs.listed(&[migration(1, "a", "queued", 7)], at(100));
        assert_eq!(signs.last_ahead_of_queue(), None);
        let two = [
            migration(2, "b", "running", 8),
            migration(1, "a", "queued", 7),
        ];
        signs.listed(&two, at(200));
        assert_eq!(signs.last_ahead_of_queue(), Some(at(200)));
    }
}
