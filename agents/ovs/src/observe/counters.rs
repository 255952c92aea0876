//! The counters of interfaces. They change all the time, so they are read when somebody wants them.

use std::collections::BTreeMap;
use std::time::Duration;

use cobalt_api::ovsnode::Metrics;
use cobalt_ovs::Error;
use cobalt_ovs::ovsdb::{Connection, Operation, vswitch};

use super::switch::CAPTURE_DEVICE;

cobalt_ovs::ovsdb_table! {
    /// The counters of an interface.
    pub struct Counters: "Interface" {
        /// Its name.
        name: String,
        /// Its counters by name.
        statistics: BTreeMap<String, i64>,
    }
}

/// All counters, by interface.
pub type AllCounters = BTreeMap<String, BTreeMap<String, i64>>;

/// Reads the counters of all interfaces.
///
/// # Errors
///
/// When the database does not answer in time.
pub async fn read(connection: &Connection, deadline: Duration) -> Result<AllCounters, Error> {
    let connection = connection.with_call_timeout(deadline);
    let select = Operation::select::<Counters>(Vec::new());
    let outcomes = connection.transact(vswitch::DATABASE, &[select]).await?;
    let rows = outcomes.into_iter().flat_map(|outcome| outcome.rows);
    Ok(rows
        .map(|row| row.read::<Counters>())
        // What a capture sees was counted where it was seen.
        .filter(|counters| !counters.name.starts_with(CAPTURE_DEVICE))
        .map(|counters| (counters.name, counters.statistics))
        .collect())
}

/// Their sums, as the OVSNode has them.
#[must_use]
pub fn sum(all: &AllCounters) -> Metrics {
    let sum = |names: &[&str]| {
        let values = all
            .values()
            .flat_map(|one| names.iter().filter_map(|name| one.get(*name)));
        // A counter that is not known is -1.
        Some(values.fold(0_i64, |sum, value| sum.saturating_add((*value).max(0))))
    };
    Metrics {
        packets_received: sum(&["rx_packets"]),
        packets_sent: sum(&["tx_packets"]),
        bytes_received: sum(&["rx_bytes"]),
        bytes_sent: sum(&["tx_bytes"]),
        drops: sum(&["rx_dropped", "tx_dropped"]),
        errors: sum(&["rx_errors", "tx_errors"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_what_is_not_known_counts_nothing() {
        let counters = |pairs: &[(&str, i64)]| {
            let own = |(name, value): &(&str, i64)| ((*name).to_owned(), *value);
            pairs.iter().map(own).collect::<BTreeMap<_, _>>()
        };
        let all = AllCounters::from([
            (
                "a".to_owned(),
                counters(&[("rx_packets", 3), ("rx_dropped", 1)]),
            ),
            (
                "b".to_owned(),
                counters(&[("rx_packets", 4), ("tx_dropped", 2), ("tx_bytes", -1)]),
            ),
            ("c".to_owned(), counters(&[("rx_packets", i64::MAX)])),
        ]);
        let sum = sum(&all);
        assert_eq!(sum.packets_received, Some(i64::MAX));
        assert_eq!(sum.drops, Some(3));
        assert_eq!(sum.bytes_sent, Some(0));
    }
}
