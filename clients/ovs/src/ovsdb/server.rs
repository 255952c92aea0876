//! Which member of a cluster to stay with, by what the server says of itself (database `_Server`).

use uuid::Uuid;

use crate::error::Unfit;

/// The name of the database.
pub const DATABASE: &str = "_Server";

crate::ovsdb_table! {
    /// A database of a server.
    pub struct Database: "Database" {
        /// Its name.
        name: String,
        /// `standalone`, `clustered` or `relay`.
        model: String,
        /// Whether the server is in touch with the cluster.
        connected: bool,
        /// Whether the server leads the cluster.
        leader: bool,
        /// The identity of the cluster.
        cid: Option<Uuid>,
        /// How far the server is in the cluster's log.
        index: Option<i64>,
    }
}

/// How far a cluster is known to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    cid: Option<Uuid>,
    index: u64,
}

impl Database {
    fn progress(&self) -> Option<Progress> {
        let index = self.index.and_then(|index| u64::try_from(index).ok())?;
        Some(Progress {
            cid: self.cid,
            index,
        })
    }

    /// How far the cluster is known to be after this has been seen. It never goes back, unless it
    /// is another cluster.
    pub fn seen(&self, before: Option<Progress>) -> Option<Progress> {
        match (before, self.progress()) {
            (Some(before), Some(now)) if before.cid == now.cid && before.index > now.index => {
                Some(before)
            }
            (before, None) => before,
            (_, now) => now,
        }
    }
}

/// Whether a server is one to stay with. `row` is what it says of the database.
///
/// A member that is cut off has old data and does not know it. One that is behind would take us
/// back in time. Both are left for another member.
pub fn judge(
    database: &str,
    row: Option<&Database>,
    leader_only: bool,
    seen: Option<Progress>,
) -> Result<(), Unfit> {
    let Some(row) = row else {
        return Err(Unfit::NoDatabase(database.to_owned()));
    };
    if row.model == "standalone" {
        return Ok(());
    }
    if !row.connected {
        return Err(Unfit::Disconnected);
    }
    if leader_only && !row.leader && row.model == "clustered" {
        return Err(Unfit::Follower);
    }
    if let (Some(seen), Some(now)) = (seen, row.progress())
        && seen.cid == now.cid
        && now.index < seen.index
    {
        return Err(Unfit::Behind {
            index: now.index,
            seen: seen.index,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(connected: bool, leader: bool, index: i64) -> Database {
        Database {
            name: "OVN_Southbound".to_owned(),
            model: "clustered".to_owned(),
            connected,
            leader,
            cid: Some(Uuid::from_u128(1)),
            index: Some(index),
        }
    }

    #[test]
    fn servers_are_judged_by_what_they_say() {
        let seen = member(true, true, 10).seen(None);
        let standalone = Database {
            model: "standalone".to_owned(),
            ..Database::default()
        };
        let relay = Database {
            model: "relay".to_owned(),
            ..member(true, false, 10)
        };
        let elsewhere = Database {
            cid: Some(Uuid::from_u128(2)),
            ..member(true, true, 3)
        };
        let none = Err(Unfit::NoDatabase("OVN_Southbound".to_owned()));
        let behind = Err(Unfit::Behind { index: 9, seen: 10 });
        for (row, leader_only, expected) in [
            (None, false, none),
            (Some(standalone), true, Ok(())),
            (Some(relay), true, Ok(())),
            (
                Some(member(false, false, 10)),
                false,
                Err(Unfit::Disconnected),
            ),
            (
                Some(member(false, true, 10)),
                true,
                Err(Unfit::Disconnected),
            ),
            (Some(member(true, false, 10)), false, Ok(())),
            (Some(member(true, false, 10)), true, Err(Unfit::Follower)),
            (Some(member(true, true, 11)), true, Ok(())),
            (Some(member(true, true, 9)), false, behind),
            (Some(elsewhere), true, Ok(())),
        ] {
            let verdict = judge("OVN_Southbound", row.as_ref(), leader_only, seen);
            assert_eq!(verdict, expected, "{row:?}");
        }
    }

    #[test]
    fn a_cluster_does_not_go_back() {
        let ten = member(true, true, 10).seen(None);
        assert_eq!(member(true, true, 9).seen(ten), ten);
        assert_eq!(member(true, true, 11).seen(ten).unwrap().index, 11);
        assert_eq!(Database::default().seen(ten), ten);
        let other = Database {
            cid: None,
            ..member(true, true, 3)
        };
        assert_eq!(other.seen(ten).unwrap().index, 3);
    }
}
