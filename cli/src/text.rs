//! Text for terminals and logs: it is safe to print, fits, and stands in columns.
//!
//! Names and errors come from tenants and other programs: no control character of theirs reaches the
//! terminal.

use std::fmt::Write as _;
use std::io::{Write as _, stderr, stdout};

use jiff::Timestamp;

/// In place of the macro of the standard library, which panics when nobody reads any more.
macro_rules! eprintln {
    ($($argument:tt)*) => {
        $crate::text::tell(&(format!($($argument)*) + "\n"))
    };
}

/// Prints on standard error. A reader that has gone away is no reason to stop.
pub fn tell(text: &str) {
    let mut out = stderr().lock();
    out.write_all(text.as_bytes()).ok();
}

/// Prints. A reader that has gone away is no reason to stop in the middle of the work.
pub fn put(text: &str) {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .ok();
}

/// Whether a terminal would obey a character instead of showing it. What changes the direction of
/// text would let a name reorder the line.
fn is_obeyed(c: char) -> bool {
    let reorders =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders
}

/// A text in one line, without anything that a terminal would obey.
pub fn clean(text: &str) -> String {
    let harmless = |c: char| if is_obeyed(c) { ' ' } else { c };
    text.chars().map(harmless).collect()
}

/// A text whose lines and tabs stay, without anything else that a terminal would obey. Its last
/// line has an end.
pub fn clean_lines(text: &str) -> String {
    let stays = |c: char| matches!(c, '\n' | '\t') || !is_obeyed(c);
    let harmless = |c: char| if stays(c) { c } else { ' ' };
    let mut out: String = text.chars().map(harmless).collect();
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// JSON for programs and people: it says the same, and a terminal obeys nothing in it.
pub fn json(value: &impl serde::Serialize) -> serde_json::Result<String> {
    let mut out = String::new();
    for c in serde_json::to_string_pretty(value)?.chars() {
        // Outside of strings JSON has no such character but the end of a line.
        if c != '\n' && is_obeyed(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                write!(out, "\\u{unit:04x}").ok();
            }
        } else {
            out.push(c);
        }
    }
    out.push('\n');
    Ok(out)
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

#[cfg(test)]
mod tests {
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
    fn lines_stay_and_nothing_else_that_a_terminal_obeys() {
        let cases = [
            ("", ""),
            ("one", "one\n"),
            ("a\n\tb\n", "a\n\tb\n"),
            ("\u{1b}]0;x\u{7}\r\n\u{202e}y", " ]0;x  \n y\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean_lines(text), expected);
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

    proptest! {
        #[test]
        fn json_says_the_same_and_is_harmless(text in any::<String>()) {
            let out = json(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
            prop_assert!(!out.trim_end().chars().any(is_obeyed));
        }

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
