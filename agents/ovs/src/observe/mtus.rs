//! Which MTU instances are told. OVN answers DHCP itself: a logical flow of its DHCP stage names the
//! port and the MTU, which Neutron takes from the network.
//!
//! To follow the text of all logical flows of a cloud would take more memory than all the rest of the
//! agent. But the flows of the local switch have the identities of the logical flows that they are made
//! of as their cookies, and a row whose identity is known costs the database nothing. So the table of
//! the DHCP stage, which differs by release, is found by reading one logical flow of each table, and
//! then the logical flows of that table are read, each once: northd never changes one, it makes another.

use std::collections::{BTreeMap, BTreeSet};

use cobalt_ovs::ovsdb::{Condition, Connection, Operation, Row, Table, southbound};
use cobalt_runtime::chain;
use futures::future::BoxFuture;
use uuid::Uuid;

use super::rows::LogicalFlow;

/// The stage that answers DHCP, as OVN calls it in every release.
const STAGE: &str = "ls_in_dhcp_options";
/// How many rows are read at once.
const ROWS: usize = 256;

/// A port, and the MTU that its instance is told.
type Told = (String, i64);

/// A logical flow that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Read {
    uuid: Uuid,
    /// The OpenFlow table of its flows.
    table: u8,
    /// It is of the DHCP stage.
    dhcp: bool,
    told: Option<Told>,
}

/// What is known of the MTUs of local ports.
#[derive(Default)]
pub struct Mtus {
    /// The OpenFlow table of the DHCP stage.
    table: Option<u8>,
    /// The logical flows that were read.
    known: BTreeMap<Uuid, Option<Told>>,
    asked: Option<BoxFuture<'static, Vec<Read>>>,
}

impl std::fmt::Debug for Mtus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mtus")
            .field("table", &self.table)
            .field("known", &self.known.len())
            .finish_non_exhaustive()
    }
}

impl Mtus {
    /// The MTUs by logical port.
    #[must_use]
    pub fn by_port(&self) -> BTreeMap<String, i64> {
        let mut all = BTreeMap::new();
        for (port, mtu) in self.known.values().flatten() {
            let known = all.entry(port.clone()).or_insert(*mtu);
            *known = (*mtu).min(*known);
        }
        all
    }

    /// Waits for what was asked for and takes it in; for ever, while nothing was.
    pub async fn learn(&mut self) {
        match &mut self.asked {
            Some(asked) => {
                let read = asked.await;
                self.asked = None;
                self.take_in(read);
            }
            None => std::future::pending().await,
        }
    }

    /// Asks for what is not known of the logical flows that local flows are made of, given with the
    /// tables of those flows, unless an answer is outstanding.
    pub fn ask(&mut self, connection: &Connection, local: &BTreeMap<Uuid, u8>) {
        self.known.retain(|uuid, _| local.contains_key(uuid));
        let rows = self.unknown(local);
        if self.asked.is_none() && !rows.is_empty() {
            self.asked = Some(Box::pin(read(connection.clone(), rows)));
        }
    }

    fn unknown(&self, local: &BTreeMap<Uuid, u8>) -> Vec<(Uuid, u8)> {
        let is_unknown = |(uuid, _): &(&Uuid, &u8)| !self.known.contains_key(uuid);
        let rows = local.iter().filter(is_unknown);
        let rows = rows.map(|(uuid, table)| (*uuid, *table));
        match self.table {
            Some(dhcp) => rows
                .filter(|(_, table)| *table == dhcp)
                .take(ROWS)
                .collect(),
            None => {
                // All flows of a table are of one stage.
                let known = local
                    .iter()
                    .filter(|(uuid, _)| self.known.contains_key(uuid));
                let mut seen: BTreeSet<u8> = known.map(|(_, table)| *table).collect();
                rows.filter(|(_, table)| seen.insert(*table)).collect()
            }
        }
    }

    fn take_in(&mut self, rows: Vec<Read>) {
        for row in rows {
            match (row.dhcp, self.table == Some(row.table)) {
                (true, _) => self.table = Some(row.table),
                // Another release of OVN has moved the stage.
                (false, true) => self.table = None,
                (false, false) => {}
            }
            self.known.insert(row.uuid, row.told);
        }
    }
}

/// Reads logical flows. What cannot be read is asked for again.
async fn read(connection: Connection, rows: Vec<(Uuid, u8)>) -> Vec<Read> {
    let columns = ["match", "actions", "external_ids"];
    let select = |(uuid, _): &(Uuid, u8)| Operation::Select {
        table: LogicalFlow::NAME.to_owned(),
        conditions: vec![Condition::row(*uuid)],
        columns: Some(columns.map(str::to_owned).to_vec()),
    };
    let selects: Vec<Operation> = rows.iter().map(select).collect();
    let outcomes = match connection.transact(southbound::DATABASE, &selects).await {
        Ok(outcomes) => outcomes,
        Err(error) => {
            tracing::debug!(error = chain(&error), "failed to read logical flows");
            return Vec::new();
        }
    };
    let rows = rows.into_iter().zip(&outcomes);
    rows.filter_map(|((uuid, table), outcome)| {
        // It may be gone by now, and then another one is there.
        let row = outcome.rows.first()?;
        let stage: Option<String> = row.in_map("external_ids", "stage-name");
        let dhcp = stage.as_deref() == Some(STAGE);
        Some(Read {
            uuid,
            table,
            dhcp,
            told: dhcp.then(|| told(row)).flatten(),
        })
    })
    .collect()
}

fn told(row: &Row) -> Option<Told> {
    let (condition, actions) = (row.get::<String>("match")?, row.get::<String>("actions")?);
    let (_, port) = condition.split_once("inport == \"")?;
    let (port, _) = port.split_once('"')?;
    let (_, options) = actions.split_once("put_dhcp_opts(")?;
    let mut options = options.split([',', ')']).map(str::trim);
    let mtu = options.find_map(|option| option.strip_prefix("mtu = "))?;
    Some((port.to_owned(), mtu.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(condition: &str, actions: &str) -> Row {
        Row::new().with("match", condition).with("actions", actions)
    }

    #[test]
    fn port_and_mtu_are_read_from_a_flow_that_answers_dhcp() {
        // As northd 25.03 writes it.
        let condition = "inport == \"fe2017a4-1170\" && eth.src == fa:16:3e:c3:05:50 && \
                         ip4.src == 0.0.0.0 && ip4.dst == 255.255.255.255 && udp.src == 68";
        let actions = "reg0[3] = put_dhcp_opts(offerip = 10.143.0.248, domain_name = \"lab.\", \
                       lease_time = 43200, mtu = 1442, netmask = 255.255.255.0); next;";
        let expected = Some(("fe2017a4-1170".to_owned(), 1442));
        assert_eq!(told(&row(condition, actions)), expected);
        let last = "reg0[3] = put_dhcp_opts(offerip = 10.143.0.248, mtu = 1442); next;";
        assert_eq!(told(&row(condition, last)), expected);
        for (condition, actions) in [
            (condition, "next;"),
            (
                condition,
                "reg0[3] = put_dhcp_opts(offerip = 1.2.3.4); next;",
            ),
            (condition, "reg0[3] = put_dhcp_opts(mtu = x); next;"),
            ("1", actions),
        ] {
            assert_eq!(
                told(&row(condition, actions)),
                None,
                "{condition} {actions}"
            );
        }
        assert_eq!(told(&Row::new()), None);
    }

    #[test]
    fn one_row_of_each_table_is_read_until_the_stage_is_found_and_then_all_of_it() {
        let uuid = Uuid::from_u128;
        let local = |rows: &[(u128, u8)]| -> BTreeMap<Uuid, u8> {
            rows.iter()
                .map(|(number, table)| (uuid(*number), *table))
                .collect()
        };
        let read = |number, table, told: Option<i64>| Read {
            uuid: uuid(number),
            table,
            dhcp: told.is_some(),
            told: told.map(|mtu| ("vm".to_owned(), mtu)),
        };
        let mut mtus = Mtus::default();
        // Nobody answers DHCP yet.
        let rows = local(&[(1, 8), (2, 8), (3, 9)]);
        assert_eq!(mtus.unknown(&rows), [(uuid(1), 8), (uuid(3), 9)]);
        mtus.take_in(vec![read(1, 8, None), read(3, 9, None)]);
        assert!(mtus.unknown(&rows).is_empty());
        assert!(mtus.by_port().is_empty());
        // A port comes.
        let rows = local(&[(1, 8), (2, 8), (3, 9), (4, 28), (5, 28)]);
        assert_eq!(mtus.unknown(&rows), [(uuid(4), 28)]);
        mtus.take_in(vec![read(4, 28, Some(1442))]);
        assert_eq!(mtus.unknown(&rows), [(uuid(5), 28)]);
        mtus.take_in(vec![read(5, 28, Some(1442))]);
        assert!(mtus.unknown(&rows).is_empty());
        assert_eq!(mtus.by_port(), BTreeMap::from([("vm".to_owned(), 1442)]));
        // Another release has it in another table.
        let rows = local(&[(6, 28), (7, 29)]);
        mtus.known.retain(|uuid, _| rows.contains_key(uuid));
        assert_eq!(mtus.unknown(&rows), [(uuid(6), 28)]);
        mtus.take_in(vec![read(6, 28, None)]);
        assert_eq!(mtus.unknown(&rows), [(uuid(7), 29)]);
        mtus.take_in(vec![read(7, 29, Some(8942))]);
        assert_eq!(mtus.by_port(), BTreeMap::from([("vm".to_owned(), 8942)]));
    }
}
