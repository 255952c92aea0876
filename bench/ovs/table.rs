//! The table, and numbers as people read them.

use std::fmt;
use std::time::Duration;

/// What was measured.
#[derive(Debug, Default)]
pub struct Table(Vec<Row>);

#[derive(Debug)]
struct Row {
    name: String,
    ours: String,
    bar: String,
    met: bool,
}

impl Table {
    /// Adds a row.
    pub fn row(&mut self, name: &str, ours: &str, bar: &str, met: bool) {
        self.0.push(Row {
            name: name.to_owned(),
            ours: ours.to_owned(),
            bar: bar.to_owned(),
            met,
        });
    }

    /// Adds times, of which 99 in 100 have to be below the bar.
    pub fn spread(&mut self, name: &str, times: &[Duration], bar: Option<u64>) {
        let met = bar.is_none_or(|bar| rank(times, 99) <= Duration::from_millis(bar));
        let bar = bar.map_or_else(|| "-".to_owned(), |bar| format!("p99 <= {bar} ms"));
        self.row(name, &format!("{} ms", spread(times)), &bar, met);
    }

    /// Adds what could not be measured.
    pub fn failed(&mut self, name: &str, error: &anyhow::Error) {
        eprintln!("error: {name}: {error:#}");
        self.row(name, "failed, see above", "-", false);
    }

    /// Whether nothing missed its bar.
    pub fn all_met(&self) -> bool {
        self.0.iter().all(|row| row.met)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, [a, b, c, d]: [&str; 4]| {
            writeln!(f, "{a:<48} {b:<28} {c:<20} {d}")
        };
        line(f, ["OVS agent (times: p50 / p99 / max)", "ours", "bar", ""])?;
        for row in &self.0 {
            let met = if row.met { "" } else { "MISSED" };
            line(f, [&row.name, &row.ours, &row.bar, met])?;
        }
        Ok(())
    }
}

/// KiB as MiB.
pub fn mib(kib: u64) -> f64 {
    // A process has less than 2^32 KiB; the conversion is exact.
    f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0
}

/// The smallest time that so many of a hundred do not exceed.
fn rank(times: &[Duration], hundredth: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    let place = (sorted.len() * hundredth).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

/// Median, 99 of 100 and maximum, in milliseconds.
fn spread(times: &[Duration]) -> String {
    [50, 99, 100]
        .map(|hundredth| format!("{:.1}", rank(times, hundredth).as_secs_f64() * 1000.0))
        .join(" / ")
}
