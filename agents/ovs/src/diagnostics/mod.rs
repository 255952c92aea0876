//! Questions about the switch over HTTPS, for who may ask them: what it is made of, where a packet
//! would go, which flows and connections it has, and packets themselves.
//!
//! | file | |
//! |---|---|
//! | `server` | listens with a certificate of its own, and says what became of each call |
//! | `access` | who asks, whether they may, and the audit line |
//! | `arguments` | what is asked, read from a URL |
//! | `questions` | what the database and ovs-vswitchd answer |
//! | `capture` | mirrors, and what they leave behind |
//! | `packets`, `pcap`, `filter` | packets from the kernel, as a file, and which of them |
//!
//! Only a capture changes the switch, and what it adds is taken away again.

pub mod access;
pub mod arguments;
pub mod capture;
pub mod filter;
pub mod packets;
pub mod pcap;
pub mod questions;
pub mod server;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

/// Why there is no answer, for who asked: what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub status: StatusCode,
    /// The text.
    pub text: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }

    /// What is asked makes no sense.
    pub fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// The database has not been read.
    #[must_use]
    pub fn no_switch() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent is not connected to OVSDB: start ovsdb-server; the issues of the OVSNode \
             say more",
        )
    }

    /// As it is sent.
    #[must_use]
    pub fn response(&self) -> Response<Body> {
        let mut response = answer(self.status, &json!({ "error": self.text }));
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// An answer as JSON.
fn answer(status: StatusCode, content: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(content.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
