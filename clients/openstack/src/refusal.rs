//! The answer of a service that refused, in its own words.

use std::fmt;
use std::time::Duration;

use http::HeaderMap;
use jiff::Timestamp;
use serde_json::Value;

/// Longest message that is kept of a refusal; a traceback or a web page is not a message.
const LONGEST_MESSAGE: usize = 1000;

/// The answer of a service that did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The service's own words.
    pub message: String,
    /// The service's own code, as Placement has them: `placement.concurrent_update`.
    pub code: Option<String>,
    /// What to look for in the service's log.
    pub request_id: Option<String>,
    /// When to come back, if the service said so.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.message, self.status)?;
        if let Some(id) = &self.request_id {
            write!(f, ", {id}")?;
        }
        f.write_str(")")
    }
}

impl Refusal {
    /// Somebody else changed it since it was read, and nothing was done.
    #[must_use]
    pub fn is_generation_conflict(&self) -> bool {
        match self.status {
            409 => self.code.as_deref() == Some("placement.concurrent_update"),
            // Two that set traits in the same moment: Placement forgets to call it a conflict.
            500 => self.message.contains("Another thread concurrently updated"),
            _ => false,
        }
    }

    /// Reads an answer that is not a success.
    pub(crate) fn read(status: u16, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Self {
        let value: Option<Value> = serde_json::from_slice(body).ok();
        let (message, code) = value.as_ref().and_then(fault).unwrap_or_default();
        let message = match tidy(&message) {
            empty if empty.is_empty() => plain_text(body, value.is_some()),
            message => message,
        };
        let message = if message.is_empty() {
            let status = http::StatusCode::from_u16(status).ok();
            let reason = status.and_then(|status| status.canonical_reason());
            reason.unwrap_or("no message").to_lowercase()
        } else {
            message
        };
        Self {
            status,
            message: shorten(message),
            code,
            request_id: request_id(headers),
            retry_after: retry_after(headers, now),
        }
    }
}

/// The message and the code of an error document. Each service has a form of its own.
fn fault(value: &Value) -> Option<(String, Option<String>)> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    // Placement: {"errors": [{"detail": ..., "code": ...}]}
    if let Some(first) = value.get("errors").and_then(|errors| errors.get(0)) {
        let detail = text(first, "detail").or_else(|| text(first, "title"))?;
        // Above the blank line are the same words for each error of that status.
        let message = match detail.split_once("\n\n") {
            Some((_, own)) if !own.trim().is_empty() => own.to_owned(),
            _ => detail,
        };
        return Some((message, text(first, "code")));
    }
    // Glance: {"message": ..., "code": ...}
    if let Some(message) = text(value, "message") {
        return Some((message, None));
    }
    // Nova, Cinder: {"itemNotFound": {"message": ...}}; Keystone: {"error": {...}};
    // Neutron: {"NeutronError": {"message": ..., "type": ...}} or a plain text.
    value.as_object()?.values().find_map(|inner| match inner {
        Value::String(message) => Some((message.clone(), None)),
        inner => Some((text(inner, "message")?, text(inner, "type"))),
    })
}

/// A body that is no error document: its text, if it is one. A web page loses its tags.
fn plain_text(body: &[u8], is_json: bool) -> String {
    if is_json {
        return String::new();
    }
    let text = String::from_utf8_lossy(body);
    let mut plain = String::new();
    let mut inside = false;
    for character in text.chars().take(8 * LONGEST_MESSAGE) {
        match character {
            '<' => {
                inside = true;
                plain.push(' ');
            }
            '>' if inside => inside = false,
            _ if inside => {}
            _ => plain.push(character),
        }
    }
    tidy(&plain)
}

/// One line, single spaces.
fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn shorten(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_MESSAGE) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// The id that a service gave to a request.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    ["x-openstack-request-id", "x-compute-request-id"]
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok())
        .map(str::to_owned)
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get("retry-after")?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(status: u16, body: &str) -> Refusal {
        Refusal::read(
            status,
            &HeaderMap::new(),
            body.as_bytes(),
            Timestamp::UNIX_EPOCH,
        )
    }

    #[test]
    fn every_service_is_quoted_in_its_own_words() {
        let nova = r#"{"itemNotFound": {"code": 404, "message": "Service x could not be found."}}"#;
        assert_eq!(read(404, nova).message, "Service x could not be found.");
        let neutron =
            r#"{"NeutronError": {"type": "NotFound", "message": "no port", "detail": ""}}"#;
        let refusal = read(404, neutron);
        assert_eq!(
            (refusal.message.as_str(), refusal.code.as_deref()),
            ("no port", Some("NotFound"))
        );
        assert_eq!(read(500, r#"{"NeutronError": "boom"}"#).message, "boom");
        let glance = r#"{"message": "No image found with ID x", "code": "404 Not Found"}"#;
        assert_eq!(read(404, glance).message, "No image found with ID x");
        let page = "<html><head><title>502 Bad Gateway</title></head>\n<body>nginx</body></html>";
        assert_eq!(read(502, page).message, "502 Bad Gateway nginx");
        assert_eq!(read(503, "").message, "service unavailable");
        assert_eq!(read(599, "{}").message, "no message");
    }

    #[test]
    fn a_race_inside_placement_is_a_conflict() {
        let race = r#"{"errors": [{"status": 500, "title": "Internal Server Error", "detail":
            "The server has either erred or is incapable of performing the requested operation.\n\n Another thread concurrently updated the resource provider data. Please retry your update  "}]}"#
            .replace("\n            ", " ");
        assert!(read(500, &race).is_generation_conflict());
        assert!(!read(500, "{}").is_generation_conflict());
    }

    #[test]
    fn a_long_message_is_cut() {
        let refusal = read(500, &"ä".repeat(100_000));
        assert_eq!(refusal.message.chars().count(), LONGEST_MESSAGE + 3);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now: Timestamp = "2026-11-17T10:00:00Z".parse().unwrap();
        let read = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", HeaderValue::from_static(value));
            retry_after(&headers, now)
        };
        assert_eq!(read("7"), Some(Duration::from_secs(7)));
        assert_eq!(
            read("Tue, 17 Nov 2026 10:00:30 GMT"),
            Some(Duration::from_secs(30))
        );
        assert_eq!(read("Tue, 17 Nov 2026 09:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(read("soon"), None);
    }
}
