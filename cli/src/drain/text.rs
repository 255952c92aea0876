//! Text for terminals and logs: it is safe to print, fits, and stands in columns.
//!
//! Names and errors come from tenants and other programs: no control character of theirs reaches the
//! terminal.

use cobalt_api::eviction::EvictionInstance;
use jiff::Timestamp;

/// A text in one line, without anything that a terminal would obey.
pub fn clean(text: &str) -> String {
    let harmless = |c: char| {
        // What changes the direction of text would let a name reorder the line.
        let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || reorders { ' ' } else { c }
    };
    text.chars().map(harmless).collect()
}

/// How many columns a text takes at most: what is not ASCII may take two.
pub fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

fn columns(c: char) -> usize {
    if c.is_ascii() { 1 } else { 2 }
}

/// A text in so many columns: cut where it is longer.
pub fn fit(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.to_owned();
    }
    let dots = ".".repeat(limit.min(2));
    let mut left = limit - dots.len();
    let mut out = String::new();
    for c in text.chars() {
        if columns(c) > left {
            break;
        }
        left -= columns(c);
        out.push(c);
    }
    out + &dots
}

/// A text in exactly so many columns.
pub fn pad(text: &str, columns: usize) -> String {
    let text = fit(text, columns);
    let missing = columns.saturating_sub(width(&text));
    text + &" ".repeat(missing)
}

/// Rows under their heads. The last column is as long as it is.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let head = head.map(str::to_owned);
    let all: Vec<&[String; N]> = std::iter::once(&head).chain(rows).collect();
    let widths: Vec<usize> = (0..N)
        .map(|column| {
            let cells = all.iter().filter_map(|row| row.get(column));
            cells.map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in all {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells.map(|(cell, columns)| pad(cell, *columns)).collect();
        out.push_str(line.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// A bar of so many columns, brackets included.
pub fn bar(percent: usize, columns: usize) -> String {
    let inner = columns.saturating_sub(2);
    let full = inner * percent.min(100) / 100;
    format!("[{}{}]", "#".repeat(full), "-".repeat(inner - full))
}

/// How long it is between two times, never less than nothing: clocks differ.
pub fn span(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.as_second().saturating_sub(from.as_second()).max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        let cases = [
            ("web-1", "web-1"),
            ("\u{1b}[2Jgone", " [2Jgone"),
            ("two\nlines\r\t", "two lines  "),
            ("\u{9b}31m\u{7f}\u{202e}evil", " 31m  evil"),
            ("böse 名前", "böse 名前"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(text), expected);
        }
    }

    #[test]
    fn spans_are_short() {
        let cases = [
            (-5, "0s"),
            (0, "0s"),
            (59, "59s"),
            (60, "1m00s"),
            (3599, "59m59s"),
            (3600, "1h00m"),
            (100_000, "27h46m"),
        ];
        for (seconds, expected) in cases {
            let from = Timestamp::UNIX_EPOCH;
            let to = Timestamp::from_second(seconds).unwrap();
            assert_eq!(span(from, to), expected);
        }
    }

    #[test]
    fn bars_are_empty_half_and_full() {
        let cases = [
            (0, "[----]"),
            (50, "[##--]"),
            (100, "[####]"),
            (300, "[####]"),
        ];
        for (percent, expected) in cases {
            assert_eq!(bar(percent, 6), expected);
        }
        assert_eq!(bar(50, 0), "[]");
    }

    #[test]
    fn a_table_stands_in_columns() {
        let rows = [
            ["web-1".to_owned(), "ok".to_owned(), String::new()],
            [
                "é".to_owned(),
                "blocked".to_owned(),
                "a long story".to_owned(),
            ],
        ];
        let expected = "\
NAME   STATE    WHY
web-1  ok
é     blocked  a long story
";
        assert_eq!(table(["NAME", "STATE", "WHY"], &rows), expected);
    }

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

    proptest! {
        #[test]
        fn what_is_fitted_fits(text in "\\PC{0,40}", limit in 0_usize..50) {
            prop_assert!(width(&fit(&text, limit)) <= limit);
            prop_assert_eq!(width(&pad(&text, limit)), limit);
            if width(&text) <= limit {
                prop_assert_eq!(fit(&text, limit), text);
            }
        }
    }
}
