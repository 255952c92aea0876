//! Reading answers: what is not known is passed over, what is missing is absent.

use std::fmt;
use std::marker::PhantomData;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// What is below one key of a document, and where the list goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Body<T> {
    pub value: T,
    /// The marker of the next page.
    pub next: Option<String>,
}

#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    rel: String,
    #[serde(default)]
    href: String,
}

/// Reads `{"<key>": ..., "<key>_links": [...]}`.
pub(crate) fn body<T: DeserializeOwned>(
    bytes: &[u8],
    key: &'static str,
) -> Result<Body<T>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let body = Seed {
        key,
        what: PhantomData,
    }
    .deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(body)
}

struct Seed<T> {
    key: &'static str,
    what: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Seed<T> {
    type Value = Body<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Body<T>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Seed<T> {
    type Value = Body<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a document with {:?}", self.key)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body<T>, A::Error> {
        let mut value = None;
        let mut next = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.key {
                value = Some(map.next_value()?);
            } else if key.strip_prefix(self.key) == Some("_links") {
                let links: Option<Vec<Link>> = map.next_value()?;
                let link = links.unwrap_or_default();
                let link = link.into_iter().find(|link| link.rel == "next");
                next = link.and_then(|link| marker(&link.href));
            } else if key == "next" {
                // Glance's form.
                let href: Option<String> = map.next_value()?;
                next = href.and_then(|href| marker(&href));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        let value = value.ok_or_else(|| serde::de::Error::missing_field(self.key))?;
        Ok(Body { value, next })
    }
}

/// The marker in a link to the next page. Only it is used: behind a proxy the rest of the link may
/// lead nowhere.
fn marker(href: &str) -> Option<String> {
    let (_, query) = href.split_once('?')?;
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("marker="))
        .map(crate::query::decoded)
}

/// Takes `null` for nothing.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A time, with or without a zone (then it is UTC). What is no time is absent.
pub(crate) fn time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Timestamp>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.as_deref().and_then(parse_time))
}

pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    let civil: DateTime = text.parse().ok()?;
    Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// An id that may be a number or a text.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Id {
        Text(String),
        Number(i64),
    }
    Ok(match Id::deserialize(deserializer)? {
        Id::Text(text) => text,
        Id::Number(number) => number.to_string(),
    })
}

/// An enum of the words that a service uses. A word that is not known is kept as it is: a new
/// release must not make the rest of an answer unreadable.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$inner])* $variant,)*
            /// A word that is not known here.
            Other(String),
        }

        impl $name {
            /// The service's word.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$variant,)*
                    _ => Self::Other(word),
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }
    };
}
pub(crate) use words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_in_every_form() {
        let nova = br#"{"servers_links": [{"rel": "next", "href": "http://x/servers?limit=2&marker=b%20c"}],
            "servers": ["a"], "more": {"servers": 1}}"#;
        let page: Body<Vec<String>> = body(nova, "servers").unwrap();
        assert_eq!(
            (page.value, page.next.as_deref()),
            (vec!["a".to_owned()], Some("b c"))
        );
        let glance = br#"{"images": [], "next": "/v2/images?marker=7", "first": "/v2/images"}"#;
        let page: Body<Vec<String>> = body(glance, "images").unwrap();
        assert_eq!(page.next.as_deref(), Some("7"));
    }

    #[test]
    fn an_answer_without_what_was_asked_for_is_an_error() {
        for bad in ["{}", "[]", "null", "<html>", "", r#"{"a": 1} x"#] {
            body::<i64>(bad.as_bytes(), "a").unwrap_err();
        }
    }

    #[test]
    fn times_with_and_without_a_zone_are_the_same() {
        let expected = parse_time("2026-11-15T21:12:37.5Z").unwrap();
        assert_eq!(parse_time("2026-11-15T21:12:37.500000"), Some(expected));
        assert_eq!(parse_time("yesterday"), None);
    }
}
