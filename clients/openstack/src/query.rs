//! Paths and queries: whatever is put in arrives as it was.

use std::fmt::Write;

/// A query under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(String);

impl Query {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(&encoded(name));
        self.0.push('=');
        self.0.push_str(&encoded(value.as_ref()));
        self
    }

    /// Adds a pair if there is a value.
    #[must_use]
    pub fn maybe(self, name: &str, value: Option<impl AsRef<str>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Text as a segment of a path or as a part of a query.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            // Writing to a String cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    // These two would be taken for steps in the path.
    match out.as_str() {
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        _ => out,
    }
}

/// The text that [`encoded`] was given.
pub(crate) fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let mut rest = bytes.clone();
        let pair = (byte == b'%').then(|| (rest.next().and_then(hex), rest.next().and_then(hex)));
        if let Some((Some(high), Some(low))) = pair {
            out.push(high << 4 | low);
            bytes = rest;
        } else {
            out.push(if byte == b'+' { b' ' } else { byte });
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// A path; each part is one segment of it.
macro_rules! at {
    ($($part:expr),+ $(,)?) => {{
        let mut path = String::new();
        $(
            path.push('/');
            path.push_str(&$crate::query::encoded($part));
        )+
        path
    }};
}
pub(crate) use at;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_leaves_its_segment() {
        assert_eq!(
            at!("servers", "../os-services"),
            "/servers/..%2Fos-services"
        );
        assert_eq!(at!("servers", ".."), "/servers/%2E%2E");
        let query = Query::new()
            .with("host", "a&all=1")
            .maybe("x", None::<&str>)
            .with("b", "ü");
        assert_eq!(query.as_str(), "?host=a%26all%3D1&b=%C3%BC");
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in ".*") {
            prop_assert_eq!(decoded(&encoded(&text)), text);
        }

        #[test]
        fn any_text_can_be_decoded(text in ".*") {
            decoded(&text);
        }
    }
}
