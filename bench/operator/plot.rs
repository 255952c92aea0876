//! A plot.

use std::time::Duration;

use crate::table::seconds;

/// How many of `all` were done at each time, as bars.
pub fn plot(title: &str, done: &[Duration], all: usize) -> String {
    const LINES: u32 = 20;
    const WIDTH: usize = 60;
    let end = done.iter().max().copied().unwrap_or_default();
    let mut text = format!("{title}\n");
    for step in 1..=LINES {
        let time = end * step / LINES;
        let count = done.iter().filter(|one| **one <= time).count();
        let bar = "#".repeat(count * WIDTH / all.max(1));
        text.push_str(&format!("{:>8} {bar:<WIDTH$} {count}\n", seconds(time)));
    }
    text
}
