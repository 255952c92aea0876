//! The table, and numbers as people read them.

use std::fmt;
use std::time::Duration;

use crate::process::Usage;

/// The bar for resident memory.
const RSS_BAR_MIB: f64 = 13.0;

/// What was measured.
#[derive(Debug, Default)]
pub struct Table(Vec<Row>);

#[derive(Debug)]
struct Row {
    name: String,
    ours: String,
    bar: String,
    met: bool,
    go: String,
}

impl Table {
    /// Adds a row.
    pub fn row(&mut self, name: &str, ours: &str, bar: &str, met: bool, go: &str) {
        self.0.push(Row {
            name: name.to_owned(),
            ours: ours.to_owned(),
            bar: bar.to_owned(),
            met,
            go: go.to_owned(),
        });
    }

    /// Adds times, of which 99 in 100 have to be below the bar.
    pub fn spread(&mut self, name: &str, times: &[Duration], bar: Option<u64>, go: &str) {
        let met = bar.is_none_or(|bar| rank(times, 99) <= Duration::from_millis(bar));
        let bar = bar.map_or_else(|| "-".to_owned(), |bar| format!("p99 <= {bar} ms"));
        self.row(name, &format!("{} ms", spread(times)), &bar, met, go);
    }

    /// Adds what could not be measured.
    pub fn failed(&mut self, name: &str, error: &anyhow::Error) {
        eprintln!("error: {name}: {error:#}");
        self.row(name, "failed, see above", "-", false, "-");
    }

    /// Adds a process' memory.
    pub fn memory(&mut self, name: &str, usage: Usage, go: &str) {
        let (rss, anonymous) = (mib(usage.rss_kib), mib(usage.anonymous_kib));
        let bar = format!("<= {RSS_BAR_MIB:.0} MiB");
        let ours = format!("{rss:.1} ({anonymous:.1}) MiB");
        self.row(name, &ours, &bar, rss <= RSS_BAR_MIB, go);
    }

    /// Whether nothing missed its bar.
    pub fn all_met(&self) -> bool {
        self.0.iter().all(|row| row.met)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, [a, b, c, d, e]: [&str; 5]| {
            writeln!(f, "{a:<44} {b:<32} {c:<14} {d:<6} {e}")
        };
        line(
            f,
            [
                "node agent (times: p50 / p99 / max)",
                "ours",
                "bar",
                "",
                "Go agent",
            ],
        )?;
        for row in &self.0 {
            let met = if row.met { "" } else { "MISSED" };
            line(f, [&row.name, &row.ours, &row.bar, met, &row.go])?;
        }
        Ok(())
    }
}

fn mib(kib: u64) -> f64 {
    // A process has less than 2^32 KiB; the conversion is exact.
    f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0
}

/// The smallest time that so many of a hundred do not exceed.
pub fn rank(times: &[Duration], hundredth: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    let place = (sorted.len() * hundredth).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

/// Median, 99 of 100 and maximum, in milliseconds.
pub fn spread(times: &[Duration]) -> String {
    [50, 99, 100]
        .map(|hundredth| format!("{:.1}", rank(times, hundredth).as_secs_f64() * 1000.0))
        .join(" / ")
}

/// A time in milliseconds.
pub fn milliseconds(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1000.0)
}
