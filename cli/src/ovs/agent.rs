//! Asks the agent of a node, over HTTPS. Whether it is the agent is known before it is shown a token,
//! and every call has a deadline.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cobalt_api::ovsnode::{Diagnostics, OvsNode};
use cobalt_wire::AnotherCertificate;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::cluster::Place;
use super::pin;
use crate::text::{clean, clean_lines};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long an agent may think: it has deadlines of its own, and says which one was missed.
const ANSWER: Duration = Duration::from_secs(30);
/// How long an answer may take to come whole: tables of connections are large.
const WHOLE: Duration = Duration::from_secs(120);
/// The longest answer that is held in memory.
const LONGEST_ANSWER: usize = 512 << 20;
/// The longest refusal.
const LONGEST_REFUSAL: usize = 64 << 10;

/// What stays as it is in a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Why the agent has not answered, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error(
        "the OVSNode does not say where the agent can be asked (it has no status.diagnostics): see \
         whether the agent runs ({pods}), and whether `diagnostics.enabled` is true in its chart"
    )]
    NotServed { pods: String },
    #[error(
        "the address in the OVSNode is not usable: {url}; see whether the agent is of this version"
    )]
    Address { url: String },
    #[error(
        "{url} refuses the connection: the agent does not run, or has just ended; see {pods}, and \
         try again"
    )]
    Refused { url: String, pods: String },
    #[error(
        "{url} does not answer within {} s: see whether the node is up, and whether firewalls and \
         network policies let you reach it from here",
        .after.as_secs()
    )]
    Silent { url: String, after: Duration },
    #[error(
        "failed to reach {url}; see whether the node is up, and whether it can be reached from here"
    )]
    Unreachable {
        url: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "{url} has another certificate than the OVSNode says, and was told nothing: the agent has \
         just restarted, so try again; if it stays so, somebody else answers there"
    )]
    Stranger { url: String },
    #[error("failed to agree on TLS with {url}; see the log of the agent ({pods})")]
    Tls {
        url: String,
        pods: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "you may not have a token of the ServiceAccount {account}, which the agent wants to see; \
         let an administrator bind the Role cobalt-ovs-diagnostics-user of the agent's chart to you. \
         The API server says: {said}"
    )]
    TokenForbidden { account: String, said: String },
    #[error(
        "there is no ServiceAccount {account}: it comes with the agent's chart; --namespace and \
         --service-account name another"
    )]
    NoAccount { account: String },
    #[error("failed to get a token of the ServiceAccount {account}")]
    Token {
        account: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the API server does not answer within {} s; try again when it does", .0.as_secs())]
    ApiServer(Duration),
    #[error("{0}")]
    OvsNode(String),
    #[error("the agent says ({status}): {said}")]
    Said { status: StatusCode, said: String },
    #[error("the connection to {url} has ended before the answer; try again")]
    Ended {
        url: String,
        #[source]
        source: hyper::Error,
    },
    #[error("the answer of {url} has not come whole; try again")]
    Cut { url: String },
    #[error(
        "the answer of {url} is not understood ({why}); see whether this command and the agent are \
         of the same version"
    )]
    Garbled { url: String, why: String },
}

/// An answer that has begun.
#[derive(Debug)]
pub struct Answer {
    pub headers: http::HeaderMap,
    pub body: Incoming,
    /// What moves the bytes; it ends with the answer.
    pub connection: JoinSet<()>,
}

/// A path with its arguments.
pub fn query(path: &str, arguments: &[(&str, &str)]) -> String {
    let mut out = path.to_owned();
    for (index, (name, value)) in arguments.iter().enumerate() {
        out.push(if index == 0 { '?' } else { '&' });
        out.push_str(name);
        out.push('=');
        out.extend(utf8_percent_encode(value, PLAIN));
    }
    out
}

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    host: String,
    port: u16,
    /// As it stands in a request.
    authority: String,
}

impl Address {
    /// Of a URL like `https://10.0.0.1:9476` or `https://[fd00::1]:9476`.
    fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        if uri.scheme_str() != Some("https") {
            return None;
        }
        let authority = uri.authority()?;
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        Some(Self {
            host: bare.unwrap_or(host).to_owned(),
            port: authority.port_u16()?,
            authority: authority.as_str().to_owned(),
        })
    }
}

/// The agent of a node.
#[derive(Debug)]
pub struct Agent {
    place: Place,
    diagnostics: Option<Diagnostics>,
}

impl Agent {
    pub fn new(place: Place, node: &OvsNode) -> Self {
        Self {
            place,
            diagnostics: diagnostics(node),
        }
    }

    /// Asks for something that is a text.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    pub async fn text(&mut self, path: &str) -> Result<String, Trouble> {
        #[derive(Deserialize)]
        struct Text {
            text: String,
        }
        Ok(self.json::<Text>(path).await?.text)
    }

    /// Asks for something that is JSON.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    pub async fn json<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Trouble> {
        let answer = self.ask(Method::GET, path).await?;
        let body = whole(answer.body, LONGEST_ANSWER, WHOLE).await;
        let body = body.ok_or_else(|| Trouble::Cut { url: self.url() })?;
        serde_json::from_slice(&body).map_err(|error| Trouble::Garbled {
            url: self.url(),
            why: clean(&error.to_string()),
        })
    }

    /// Asks, and returns the answer as soon as it begins.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    pub async fn ask(&mut self, method: Method, path: &str) -> Result<Answer, Trouble> {
        let (address, stream) = match self.connect().await {
            Err(Trouble::Stranger { url }) => {
                // An agent that starts makes a certificate, and writes it to the OVSNode.
                if !self.look_again().await? {
                    return Err(Trouble::Stranger { url });
                }
                self.connect().await?
            }
            connected => connected?,
        };
        let token = self.place.token().await?;
        let request = request(method, path, &address, &token).map_err(|why| Trouble::Garbled {
            url: self.url(),
            why,
        })?;
        match tokio::time::timeout(ANSWER, self.send(stream, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Trouble::Silent {
                url: self.url(),
                after: ANSWER,
            }),
        }
    }

    async fn send(
        &self,
        stream: TlsStream<TcpStream>,
        request: Request<Empty<Bytes>>,
    ) -> Result<Answer, Trouble> {
        let ended = |source| Trouble::Ended {
            url: self.url(),
            source,
        };
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(ended)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // How it ended, the answer says, too.
            connection.await.ok();
        });
        let answer = sender.send_request(request).await.map_err(ended)?;
        let (parts, body) = answer.into_parts();
        if parts.status == StatusCode::OK {
            return Ok(Answer {
                headers: parts.headers,
                body,
                connection: tasks,
            });
        }
        let body = whole(body, LONGEST_REFUSAL, ANSWER).await;
        Err(Trouble::Said {
            status: parts.status,
            said: said(&body.unwrap_or_default()),
        })
    }

    /// A connection to the agent and to nobody else.
    async fn connect(&self) -> Result<(Address, TlsStream<TcpStream>), Trouble> {
        let Some(diagnostics) = &self.diagnostics else {
            return Err(Trouble::NotServed {
                pods: self.place.pods(),
            });
        };
        let unusable = || Trouble::Address { url: self.url() };
        let address = Address::parse(&diagnostics.url).ok_or_else(unusable)?;
        let name = ServerName::try_from(address.host.clone()).map_err(|_| unusable())?;
        let config =
            pin::config(&diagnostics.certificate_sha256).map_err(|error| Trouble::Tls {
                url: self.url(),
                pods: self.place.pods(),
                source: io::Error::other(error),
            })?;
        let connecting = async {
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
            let stream = stream.map_err(|source| self.unreachable(source))?;
            let connector = TlsConnector::from(Arc::new(config));
            let stream = connector.connect(name, stream).await;
            stream.map_err(|source| self.no_tls(source))
        };
        match tokio::time::timeout(CONNECT, connecting).await {
            Ok(connected) => Ok((address, connected?)),
            Err(_) => Err(Trouble::Silent {
                url: self.url(),
                after: CONNECT,
            }),
        }
    }

    fn unreachable(&self, source: io::Error) -> Trouble {
        let url = self.url();
        match source.kind() {
            io::ErrorKind::ConnectionRefused => Trouble::Refused {
                url,
                pods: self.place.pods(),
            },
            _ => Trouble::Unreachable { url, source },
        }
    }

    fn no_tls(&self, source: io::Error) -> Trouble {
        let url = self.url();
        if AnotherCertificate::of(&source).is_some() {
            return Trouble::Stranger { url };
        }
        Trouble::Tls {
            url,
            pods: self.place.pods(),
            source,
        }
    }

    /// Reads again where the agent is. Returns whether that has changed.
    async fn look_again(&mut self) -> Result<bool, Trouble> {
        let read = self.place.ovs_node().await;
        let node = read.map_err(|error| Trouble::OvsNode(format!("{error:#}")))?;
        let now = diagnostics(&node);
        let changed = now != self.diagnostics;
        self.diagnostics = now;
        Ok(changed)
    }

    /// Where the agent is, for people.
    pub fn url(&self) -> String {
        let url = self.diagnostics.as_ref().map(|found| clean(&found.url));
        url.unwrap_or_default()
    }
}

fn diagnostics(node: &OvsNode) -> Option<Diagnostics> {
    node.status.as_ref()?.diagnostics.clone()
}

fn request(
    method: Method,
    path: &str,
    address: &Address,
    token: &str,
) -> Result<Request<Empty<Bytes>>, String> {
    let mut token =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|error| error.to_string())?;
    token.set_sensitive(true);
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, &address.authority)
        .header(AUTHORIZATION, token)
        .body(Empty::new())
        .map_err(|error| error.to_string())
}

/// A body that has come whole in time.
async fn whole(body: Incoming, limit: usize, deadline: Duration) -> Option<Bytes> {
    let collected = Limited::new(body, limit).collect();
    let collected = tokio::time::timeout(deadline, collected).await.ok()?;
    Some(collected.ok()?.to_bytes())
}

/// The agent's words.
fn said(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    let words = match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => refusal.error,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let words = clean_lines(words.trim());
    match words.trim_end() {
        "" => "nothing more; its log may".to_owned(),
        words => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_what_they_say() {
        let cases: [(&[(&str, &str)], &str); 3] = [
            (&[], "/v1/x"),
            (
                &[("flow", "in_port=1,icmp")],
                "/v1/x?flow=in_port%3D1%2Cicmp",
            ),
            (
                &[("a", "not (tcp or udp) && ip"), ("b", "é#?+%")],
                "/v1/x?a=not%20%28tcp%20or%20udp%29%20%26%26%20ip&b=%C3%A9%23%3F%2B%25",
            ),
        ];
        for (arguments, expected) in cases {
            assert_eq!(query("/v1/x", arguments), expected);
            assert!(expected.parse::<Uri>().is_ok());
        }
    }

    #[test]
    fn addresses_are_understood() {
        let cases = [
            ("https://10.0.0.1:9476", Some(("10.0.0.1", 9476))),
            ("https://[fd00::1]:9476", Some(("fd00::1", 9476))),
            (
                "https://hv1.example.org:443",
                Some(("hv1.example.org", 443)),
            ),
            ("https://10.0.0.1", None),
            ("http://10.0.0.1:9476", None),
            ("https://", None),
            ("https://10.0.0.1:99999", None),
            ("10.0.0.1:9476", None),
            ("", None),
        ];
        for (url, expected) in cases {
            let parsed = Address::parse(url);
            let parsed = parsed.as_ref().map(|one| (one.host.as_str(), one.port));
            assert_eq!(parsed, expected, "{url}");
        }
    }

    #[test]
    fn the_words_of_an_agent_are_found_and_harmless() {
        let cases: [(&[u8], &str); 5] = [
            (
                br#"{"error": "no such bridge: br0"}"#,
                "no such bridge: br0",
            ),
            (br#"{"error": "a\nb\u001b[2J\n"}"#, "a\nb [2J"),
            (b"upstream \x1b gone\n", "upstream   gone"),
            (b"\xff", "\u{fffd}"),
            (b"", "nothing more; its log may"),
        ];
        for (body, expected) in cases {
            assert_eq!(said(body), expected);
        }
    }
}
