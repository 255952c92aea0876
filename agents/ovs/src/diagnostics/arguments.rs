//! What is asked, as a URL says it. Pure: each argument is known, given once, and makes sense.

use std::collections::BTreeMap;

use axum::http::{Method, StatusCode};

use super::Refusal;
use super::access::Verb;
use super::capture::{Limits, MAX_SNAPLEN, Wanted};
use super::filter::Filter;

/// How long the arguments may be.
pub const MAX_QUERY: usize = 16 * 1024;
/// How long a flow may be.
const MAX_FLOW: usize = 4 * 1024;
/// How long a name may be.
const MAX_NAME: usize = 256;

const DEFAULT_SECONDS: u64 = 30;
const DEFAULT_BYTES: u64 = 16 * 1024 * 1024;
const MIN_SNAPLEN: u64 = 14;

/// The paths, and the arguments of each.
const PATHS: &[(&str, &[&str])] = &[
    ("/v1/bridges", &[]),
    ("/v1/trace", &["bridge", "flow"]),
    ("/v1/flows", &["bridge"]),
    ("/v1/datapath-flows", &[]),
    ("/v1/conntrack", &["zone"]),
    ("/v1/fdb", &["bridge"]),
    ("/v1/bonds", &["port"]),
    (
        CAPTURE,
        &[
            "interface",
            "seconds",
            "bytes",
            "packets",
            "snaplen",
            "filter",
        ],
    ),
];
const CAPTURE: &str = "/v1/capture";

/// What is asked.
#[derive(Debug, Clone)]
pub enum Question {
    /// What the switch is made of.
    Bridges,
    /// Where a packet would go.
    Trace {
        /// From this bridge on.
        bridge: String,
        /// Such a packet.
        flow: String,
    },
    /// The OpenFlow flows of a bridge.
    Flows(String),
    /// The flows of the datapaths.
    DatapathFlows,
    /// The connections that datapaths follow.
    Conntrack(Option<u16>),
    /// The addresses that a bridge has learned.
    Fdb(String),
    /// Bonds and their LACP: of one port, or all.
    Bonds(Option<String>),
    /// Packets.
    Capture(Wanted),
}

/// A known path, or `other`: what metrics say.
#[must_use]
pub fn label(path: &str) -> &'static str {
    let known = PATHS.iter().find(|(known, _)| *known == path);
    known.map_or("other", |(known, _)| *known)
}

/// The arguments as the audit line has them: those that the path knows. Whatever else somebody puts
/// there by mistake is not for a log.
#[must_use]
pub fn shown(path: &str, query: &str) -> String {
    let known = PATHS.iter().find(|(known, _)| *known == path);
    let known = known.map_or(&[][..], |(_, names)| names);
    let pairs = form_urlencoded::parse(query.as_bytes());
    let pairs = pairs.filter(|(name, _)| known.contains(&name.as_ref()));
    let pairs: Vec<String> = pairs
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join(" ")
}

/// What a request needs before anything is said of it.
#[must_use]
pub fn verb(path: &str) -> Verb {
    if path == CAPTURE {
        Verb::Create
    } else {
        Verb::Get
    }
}

/// Reads a request.
///
/// # Errors
///
/// Says which argument is wrong, and how it has to be.
pub fn read(method: &Method, path: &str, query: &str, limits: Limits) -> Result<Question, Refusal> {
    let Some((path, known)) = PATHS.iter().find(|(known, _)| *known == path) else {
        let all: Vec<&str> = PATHS.iter().map(|(path, _)| *path).collect();
        return Err(Refusal::new(
            StatusCode::NOT_FOUND,
            format!("there is nothing at this path; there is {}", all.join(", ")),
        ));
    };
    let wanted = if *path == CAPTURE {
        Method::POST
    } else {
        Method::GET
    };
    if *method != wanted {
        return Err(Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("{path} takes {wanted}, not {method}"),
        ));
    }
    let arguments = Arguments::read(query, known)?;
    Ok(match *path {
        "/v1/bridges" => Question::Bridges,
        "/v1/trace" => Question::Trace {
            bridge: arguments.required("bridge", MAX_NAME)?,
            flow: arguments.flow()?,
        },
        "/v1/flows" => Question::Flows(arguments.required("bridge", MAX_NAME)?),
        "/v1/datapath-flows" => Question::DatapathFlows,
        "/v1/conntrack" => {
            let zone = arguments.number("zone", 0, u16::MAX.into())?;
            Question::Conntrack(zone.and_then(|zone| u16::try_from(zone).ok()))
        }
        "/v1/fdb" => Question::Fdb(arguments.required("bridge", MAX_NAME)?),
        "/v1/bonds" => Question::Bonds(arguments.optional("port", MAX_NAME)?),
        _ => Question::Capture(arguments.capture(limits)?),
    })
}

struct Arguments(BTreeMap<String, String>);

impl Arguments {
    fn read(query: &str, known: &[&str]) -> Result<Self, Refusal> {
        let mut found = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&name.as_ref()) {
                let hint = match known {
                    [] => "there are none here".to_owned(),
                    known => format!("there is {}", known.join(", ")),
                };
                return Err(Refusal::bad(format!(
                    "no argument is called {name:?}: {hint}"
                )));
            }
            if found
                .insert(name.clone().into_owned(), value.into_owned())
                .is_some()
            {
                return Err(Refusal::bad(format!("{name} is given twice")));
            }
        }
        Ok(Self(found))
    }

    fn optional(&self, name: &str, most: usize) -> Result<Option<String>, Refusal> {
        let value = self.0.get(name).filter(|value| !value.is_empty());
        match value {
            Some(value) if value.len() > most => {
                Err(Refusal::bad(format!("{name} is longer than {most} bytes")))
            }
            Some(value) if value.contains(|c: char| c.is_control()) => Err(Refusal::bad(format!(
                "{name} has characters in it that cannot be seen"
            ))),
            value => Ok(value.cloned()),
        }
    }

    fn required(&self, name: &str, most: usize) -> Result<String, Refusal> {
        self.optional(name, most)?
            .ok_or_else(|| Refusal::bad(format!("{name} is missing")))
    }

    /// A whole number within bounds.
    fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.0.get(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(Refusal::bad(format!(
                "{name} has to be a number from {least} to {most}, not {text:?}"
            ))),
        }
    }

    /// A flow is a description. What begins like an option may be one, and `-generate` would send
    /// a packet.
    fn flow(&self) -> Result<String, Refusal> {
        let flow = self.required("flow", MAX_FLOW)?;
        if flow.trim_start().starts_with('-') {
            return Err(Refusal::bad(
                "flow must not begin with \"-\": it is a flow such as \
                 in_port=1,icmp,nw_dst=192.0.2.1; options such as -generate are not taken",
            ));
        }
        Ok(flow)
    }

    /// As a number, but what is above the ceiling names its flag.
    fn limited(&self, name: &str, default: u64, ceiling: u64, flag: &str) -> Result<u64, Refusal> {
        let asked = self.number(name, 1, u64::MAX)?;
        match asked {
            Some(asked) if asked > ceiling => Err(Refusal::bad(format!(
                "{name} is at most {ceiling} on this node ({flag}), not {asked}"
            ))),
            asked => Ok(asked.unwrap_or(default).min(ceiling)),
        }
    }

    fn capture(&self, limits: Limits) -> Result<Wanted, Refusal> {
        let most = u64::try_from(MAX_SNAPLEN).unwrap_or(u64::MAX);
        let snaplen = self.number("snaplen", MIN_SNAPLEN, most)?;
        let filter = self.0.get("filter").map_or("", String::as_str);
        Ok(Wanted {
            interface: self.required("interface", MAX_NAME)?,
            seconds: self.limited(
                "seconds",
                DEFAULT_SECONDS,
                limits.seconds,
                "--capture-max-seconds",
            )?,
            bytes: self.limited("bytes", DEFAULT_BYTES, limits.bytes, "--capture-max-bytes")?,
            packets: self.number("packets", 1, u64::MAX)?,
            snaplen: snaplen.map_or(MAX_SNAPLEN, |snaplen| {
                usize::try_from(snaplen).unwrap_or(MAX_SNAPLEN)
            }),
            filter: Filter::parse(filter).map_err(|error| Refusal::bad(error.to_string()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        seconds: 300,
        bytes: 1 << 28,
        concurrent: 2,
    };

    fn asked(method: &Method, target: &str) -> Result<Question, (u16, String)> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        read(method, path, query, LIMITS).map_err(|refusal| (refusal.status.as_u16(), refusal.text))
    }

    #[test]
    fn questions_are_read_with_their_arguments() {
        let get = |target: &str| asked(&Method::GET, target).unwrap();
        assert!(matches!(get("/v1/bridges"), Question::Bridges));
        let Question::Trace { bridge, flow } = get("/v1/trace?bridge=br-int&flow=in_port%3D1,ip")
        else {
            panic!()
        };
        assert_eq!((bridge.as_str(), flow.as_str()), ("br-int", "in_port=1,ip"));
        assert!(matches!(
            get("/v1/conntrack?zone=7"),
            Question::Conntrack(Some(7))
        ));
        assert!(matches!(get("/v1/conntrack"), Question::Conntrack(None)));
        assert!(matches!(get("/v1/bonds?port="), Question::Bonds(None)));

        let capture = |target: &str| match asked(&Method::POST, target).unwrap() {
            Question::Capture(wanted) => wanted,
            other => panic!("{other:?}"),
        };
        let plain = capture("/v1/capture?interface=tap1");
        assert_eq!((plain.seconds, plain.bytes), (30, 16 << 20));
        assert_eq!((plain.packets, plain.snaplen), (None, 262_144));
        assert!(plain.filter.is_none());
        let full = capture(
            "/v1/capture?interface=tap1&seconds=300&bytes=100&packets=2&snaplen=64&filter=tcp+port+80",
        );
        assert_eq!((full.seconds, full.bytes), (300, 100));
        assert_eq!((full.packets, full.snaplen), (Some(2), 64));
        assert!(full.filter.is_some());
    }

    #[test]
    fn what_makes_no_sense_is_told_with_its_reason() {
        let long = "x".repeat(5000);
        let long = format!("/v1/trace?bridge=b&flow={long}");
        let (get, post) = (Method::GET, Method::POST);
        for (method, target, code, reason) in [
            (&get, "/v1/nothing", 404, "/v1/bridges"),
            (&get, "/v1/capture?interface=a", 405, "POST"),
            (&post, "/v1/flows?bridge=b", 405, "GET"),
            (&get, "/v1/flows", 400, "bridge is missing"),
            (&get, "/v1/flows?bridge=", 400, "bridge is missing"),
            (&get, "/v1/flows?bridge=a&bridge=b", 400, "twice"),
            (&get, "/v1/flows?bridge=a&flow=b", 400, "\"flow\""),
            (&get, "/v1/bridges?a=b", 400, "none here"),
            (&get, "/v1/flows?bridge=a%0ab", 400, "cannot be seen"),
            (&get, "/v1/trace?bridge=b&flow=-generate", 400, "-generate"),
            (
                &get,
                "/v1/trace?bridge=b&flow=+--ct-next",
                400,
                "must not begin",
            ),
            (&get, &long, 400, "4096 bytes"),
            (&get, "/v1/conntrack?zone=65536", 400, "from 0 to 65535"),
            (&post, "/v1/capture", 400, "interface is missing"),
            (&post, "/v1/capture?interface=a&seconds=0", 400, "from 1"),
            (
                &post,
                "/v1/capture?interface=a&seconds=301",
                400,
                "--capture-max-seconds",
            ),
            (
                &post,
                "/v1/capture?interface=a&bytes=268435457",
                400,
                "--capture-max-bytes",
            ),
            (&post, "/v1/capture?interface=a&snaplen=13", 400, "from 14"),
            (
                &post,
                "/v1/capture?interface=a&snaplen=262145",
                400,
                "262144",
            ),
            (
                &post,
                "/v1/capture?interface=a&filter=tpc",
                400,
                "position 1",
            ),
        ] {
            let (found, text) = asked(method, target).unwrap_err();
            assert_eq!(found, code, "{target}: {text}");
            assert!(text.contains(reason), "{target}: {text}");
        }
    }

    #[test]
    fn only_captures_need_more_than_reading() {
        assert_eq!(verb("/v1/capture"), Verb::Create);
        assert_eq!(verb("/v1/trace"), Verb::Get);
        assert_eq!((label("/v1/fdb"), label("/x")), ("/v1/fdb", "other"));
        let query = "bridge=br%2Dint&token=secret";
        assert_eq!(shown("/v1/fdb", query), "bridge=br-int");
        assert_eq!(shown("/x", query), "");
    }
}
