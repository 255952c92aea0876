//! The table, and numbers as people read them.

use std::fmt;
use std::time::Duration;

/// What was measured, beside what others did.
#[derive(Debug)]
pub struct Table {
    title: &'static str,
    others: &'static str,
    rows: Vec<Row>,
    notes: String,
}

#[derive(Debug)]
struct Row {
    name: String,
    ours: String,
    bar: String,
    met: bool,
    others: String,
}

impl Table {
    /// One without rows, with the words above its first and its last column.
    pub fn new(title: &'static str, others: &'static str) -> Self {
        Self {
            title,
            others,
            rows: Vec::new(),
            notes: String::new(),
        }
    }

    /// Adds a row, and says it at once: the table comes much later.
    pub fn row(&mut self, name: &str, ours: &str, bar: &str, met: bool, others: &str) {
        eprintln!("  {}: {ours} (bar: {bar}; others: {others})", name.trim());
        self.rows.push(Row {
            name: name.to_owned(),
            ours: ours.to_owned(),
            bar: bar.to_owned(),
            met,
            others: others.to_owned(),
        });
    }

    /// Adds what has no bar.
    pub fn fact(&mut self, name: &str, ours: &str, others: &str) {
        self.row(name, ours, "-", true, others);
    }

    /// Adds a number that must not be exceeded.
    pub fn at_most(&mut self, name: &str, ours: u64, bar: u64, others: &str) {
        let wanted = if bar == 0 {
            "0".to_owned()
        } else {
            format!("<= {bar}")
        };
        self.row(name, &ours.to_string(), &wanted, ours <= bar, others);
    }

    /// Adds a time that must not be exceeded.
    pub fn within(&mut self, name: &str, ours: Duration, bar: Duration, others: &str) {
        let wanted = format!("<= {}", seconds(bar));
        self.row(name, &seconds(ours), &wanted, ours <= bar, others);
    }

    /// Adds memory that must not be exceeded.
    pub fn memory(&mut self, name: &str, kib: u64, peak_kib: u64, bar_mib: f64, others: &str) {
        let ours = format!("{:.1} MiB (peak {:.1})", mib(kib), mib(peak_kib));
        let wanted = format!("<= {bar_mib:.0} MiB");
        self.row(name, &ours, &wanted, mib(kib) <= bar_mib, others);
    }

    /// Adds what could not be measured.
    pub fn failed(&mut self, name: &str, error: &anyhow::Error) {
        eprintln!("error: {name}: {error:#}");
        self.row(name, "failed, see above", "-", false, "-");
    }

    /// Adds text that stands below the table.
    pub fn note(&mut self, text: &str) {
        self.notes.push('\n');
        self.notes.push_str(text);
    }

    /// Whether nothing missed its bar.
    pub fn all_met(&self) -> bool {
        self.rows.iter().all(|row| row.met)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, [a, b, c, d, e]: [&str; 5]| {
            writeln!(f, "{a:<52} {b:<28} {c:<12} {d:<6} {e}")
        };
        line(f, [self.title, "ours", "bar", "", self.others])?;
        for row in &self.rows {
            let met = if row.met { "" } else { "MISSED" };
            line(f, [&row.name, &row.ours, &row.bar, met, &row.others])?;
        }
        f.write_str(&self.notes)
    }
}

fn mib(kib: u64) -> f64 {
    // A process has less than 2^32 KiB; the conversion is exact.
    f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0
}

/// A time in seconds.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
