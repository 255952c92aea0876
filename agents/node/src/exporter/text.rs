//! The text format of Prometheus (0.0.4), written straight into a string.

use std::fmt::Write;

/// What a family's values mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until what it counts begins anew.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// A value with up to nine digits after the point. Floating point would lose nanoseconds of a
/// machine that runs for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    whole: u64,
    billionths: u64,
}

impl Value {
    /// What is so many billionths.
    pub fn billionths(count: u128) -> Self {
        let whole = u64::try_from(count / 1_000_000_000).unwrap_or(u64::MAX);
        let billionths = u64::try_from(count % 1_000_000_000).unwrap_or(0);
        Self { whole, billionths }
    }
}

impl From<u64> for Value {
    fn from(whole: u64) -> Self {
        Self {
            whole,
            billionths: 0,
        }
    }
}

/// A label and its value.
pub type Label<'a> = (&'static str, &'a str);

/// Families and their samples. A family is announced with its first sample: one without any would
/// say nothing.
#[derive(Debug)]
pub struct Text<'a> {
    out: &'a mut String,
    family: (&'static str, Kind, &'static str),
    announced: bool,
}

impl<'a> Text<'a> {
    /// Appends to a string.
    pub fn new(out: &'a mut String) -> Self {
        Self {
            out,
            family: ("", Kind::Gauge, ""),
            announced: true,
        }
    }

    /// Begins a family. All its samples have to follow before the next one begins.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> &mut Self {
        self.family = (name, kind, help);
        self.announced = false;
        self
    }

    /// A sample of the present family.
    pub fn sample(&mut self, labels: &[Label<'_>], value: impl Into<Value>) {
        let (name, kind, help) = self.family;
        if !std::mem::replace(&mut self.announced, true) {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            self.push(&[
                "# HELP ",
                name,
                " ",
                help,
                ".\n# TYPE ",
                name,
                " ",
                kind,
                "\n",
            ]);
        }
        self.push(&[name]);
        let mut before = "{";
        for (label, value) in labels {
            self.push(&[before, label, "=\""]);
            escape(self.out, value);
            self.push(&["\""]);
            before = ",";
        }
        if !labels.is_empty() {
            self.push(&["}"]);
        }
        self.push(&[" "]);
        self.value(value.into());
        self.push(&["\n"]);
    }

    fn value(&mut self, Value { whole, billionths }: Value) {
        // Writing to a string cannot fail.
        write!(self.out, "{whole}").ok();
        if billionths > 0 {
            write!(self.out, ".{billionths:09}").ok();
            let length = self.out.trim_end_matches('0').len();
            self.out.truncate(length);
        }
    }

    fn push(&mut self, parts: &[&str]) {
        for part in parts {
            self.out.push_str(part);
        }
    }
}

/// Appends a label's value. A name may hold anything.
fn escape(out: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(labels: &[Label<'_>], value: impl Into<Value>) -> String {
        let mut out = String::new();
        let mut text = Text::new(&mut out);
        text.family("f", Kind::Counter, "Help")
            .sample(labels, value);
        out
    }

    #[test]
    fn a_family_without_samples_is_not_announced() {
        let mut out = String::new();
        let mut text = Text::new(&mut out);
        text.family("empty", Kind::Gauge, "Nothing");
        text.family("full", Kind::Gauge, "One").sample(&[], 1);
        assert_eq!(out, "# HELP full One.\n# TYPE full gauge\nfull 1\n");
    }

    #[test]
    fn values_are_exact_and_have_no_needless_zeros() {
        for (value, wanted) in [
            (Value::from(0), "0"),
            (Value::from(u64::MAX), "18446744073709551615"),
            (Value::from(100), "100"),
            (Value::billionths(120_000_000), "0.12"),
            (Value::billionths(30_000_000_000), "30"),
            (
                Value::billionths(9_999_999_999_999_999_999),
                "9999999999.999999999",
            ),
            (Value::billionths(1), "0.000000001"),
        ] {
            let text = written(&[], value);
            let line = text.lines().last().unwrap();
            assert_eq!(line, format!("f {wanted}"));
        }
    }

    #[test]
    fn quotes_newlines_and_backslashes_cannot_leave_a_label() {
        let text = written(&[("a", "x\"} 1\ny\\"), ("b", "über")], 1);
        assert_eq!(
            text.lines().last(),
            Some("f{a=\"x\\\"} 1\\ny\\\\\",b=\"über\"} 1")
        );
    }
}
