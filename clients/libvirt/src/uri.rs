//! Where libvirt is: URIs as libvirt's own tools take them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

const TCP_PORT: u16 = 16509;
const TLS_PORT: u16 = 16514;
const SYSTEM_SOCKET: &str = "/run/libvirt/libvirt-sock";

/// The hypervisor behind libvirt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Driver {
    /// QEMU, with or without KVM.
    Qemu,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// libvirt's own driver for tests: domains without a hypervisor.
    Test,
}

impl Driver {
    /// Its name in a URI.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::CloudHypervisor => "ch",
            Self::Test => "test",
        }
    }
}

/// How libvirt is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Through a socket of this machine; `None` is the usual one.
    Unix(Option<PathBuf>),
    /// Over the network, readable by everyone.
    Tcp(String, u16),
    /// Over the network, encrypted, both sides with certificates.
    Tls(String, u16),
}

/// Where libvirt is.
///
/// ```
/// use cobalt_libvirt::{Driver, Uri};
///
/// let local: Uri = "qemu:///system".parse()?;
/// assert_eq!(local, "qemu+unix:///system?socket=/run/libvirt/libvirt-sock".parse()?);
/// let remote: Uri = "ch+tls://hv1.example/system".parse()?;
/// assert_eq!(remote.driver(), Driver::CloudHypervisor);
/// assert_eq!(remote.host(), Some("hv1.example"));
/// # Ok::<(), cobalt_libvirt::UriError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Uri {
    driver: Driver,
    pub(crate) transport: Transport,
    /// `system` or `session`; for the driver for tests `default` or a file.
    path: String,
}

/// Why a text is no URI of libvirt.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no URI of libvirt: {problem}; write for example qemu:///system, \
     qemu+unix:///system?socket=/run/libvirt/libvirt-sock, qemu+tcp://host:16509/system or \
     ch+tls://host/system"
)]
pub struct UriError {
    text: String,
    problem: String,
}

impl Uri {
    /// The hypervisor behind it.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Whether everyone on the network can read along and pretend to be libvirt.
    pub fn is_plain_tcp(&self) -> bool {
        matches!(self.transport, Transport::Tcp(..))
    }

    /// The host, if it is reached over the network.
    pub fn host(&self) -> Option<&str> {
        match &self.transport {
            Transport::Unix(_) => None,
            Transport::Tcp(host, _) | Transport::Tls(host, _) => Some(host),
        }
    }

    /// The socket, if it is reached through one.
    pub fn socket(&self) -> Option<&Path> {
        match &self.transport {
            Transport::Unix(Some(path)) => Some(path),
            Transport::Unix(None) => Some(Path::new(SYSTEM_SOCKET)),
            Transport::Tcp(..) | Transport::Tls(..) => None,
        }
    }

    /// The same through this socket, where the URI is for a socket and names none itself.
    #[must_use]
    pub fn with_socket(mut self, socket: &Path) -> Self {
        if let Transport::Unix(path @ None) = &mut self.transport {
            *path = Some(socket.to_owned());
        }
        self
    }

    /// What libvirt is asked to open: the URI as it would be on its own machine.
    pub(crate) fn name(&self) -> String {
        format!("{}:///{}", self.driver.scheme(), self.path)
    }
}

/// A socket that is named and is the usual one is the same as none.
impl PartialEq for Uri {
    fn eq(&self, other: &Self) -> bool {
        let same_place = match (&self.transport, &other.transport) {
            (Transport::Unix(_), Transport::Unix(_)) => self.socket() == other.socket(),
            (mine, others) => mine == others,
        };
        same_place && self.driver == other.driver && self.path == other.path
    }
}

impl Eq for Uri {}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.driver.scheme();
        let path = &self.path;
        let host = |host: &str| {
            if host.contains(':') {
                format!("[{host}]")
            } else {
                host.to_owned()
            }
        };
        match &self.transport {
            Transport::Unix(None) => write!(f, "{scheme}+unix:///{path}"),
            Transport::Unix(Some(socket)) => write!(
                f,
                "{scheme}+unix:///{path}?socket={}",
                encode(&socket.to_string_lossy())
            ),
            Transport::Tcp(name, TCP_PORT) => write!(f, "{scheme}+tcp://{}/{path}", host(name)),
            Transport::Tls(name, TLS_PORT) => write!(f, "{scheme}+tls://{}/{path}", host(name)),
            Transport::Tcp(name, port) => {
                write!(f, "{scheme}+tcp://{}:{port}/{path}", host(name))
            }
            Transport::Tls(name, port) => {
                write!(f, "{scheme}+tls://{}:{port}/{path}", host(name))
            }
        }
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        parse(text).map_err(|problem| UriError {
            text: text.to_owned(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Uri, String> {
    let (scheme, rest) = text.split_once("://").ok_or("\"://\" is missing")?;
    let (driver, transport) = match scheme.split_once('+') {
        Some((driver, transport)) => (driver, Some(transport)),
        None => (scheme, None),
    };
    let driver = match driver {
        "qemu" => Driver::Qemu,
        "ch" => Driver::CloudHypervisor,
        "test" => Driver::Test,
        other => return Err(format!("the driver {other:?} is none of qemu, ch, test")),
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (authority, path) = rest
        .split_once('/')
        .ok_or("the path is missing (/system, or /default for test)")?;
    if path.is_empty() {
        return Err("the path is empty (/system, or /default for test)".to_owned());
    }
    let socket = parse_query(query)?;
    // As libvirt has it: a host without a transport is TLS, none is the local socket.
    let transport = transport.unwrap_or(if authority.is_empty() { "unix" } else { "tls" });
    let transport = match transport {
        "unix" if !authority.is_empty() => {
            return Err(format!("a socket has no host, and {authority:?} is one"));
        }
        "unix" if socket.is_none() && driver != Driver::Test && path != "system" => {
            return Err(format!(
                "the socket of /{path} is unknown: add ?socket=/path"
            ));
        }
        "unix" => Transport::Unix(socket),
        "tcp" | "tls" if socket.is_some() => {
            return Err("?socket= goes with unix only".to_owned());
        }
        "tcp" => {
            let (host, port) = parse_authority(authority, TCP_PORT)?;
            Transport::Tcp(host, port)
        }
        "tls" => {
            let (host, port) = parse_authority(authority, TLS_PORT)?;
            Transport::Tls(host, port)
        }
        other => return Err(format!("the transport {other:?} is none of unix, tcp, tls")),
    };
    Ok(Uri {
        driver,
        transport,
        path: path.to_owned(),
    })
}

fn parse_query(query: Option<&str>) -> Result<Option<PathBuf>, String> {
    let mut socket = None;
    for pair in query
        .unwrap_or_default()
        .split('&')
        .filter(|p| !p.is_empty())
    {
        match pair.split_once('=') {
            Some(("socket", path)) => {
                let path = PathBuf::from(decode(path)?);
                if !path.is_absolute() {
                    return Err("?socket= must be an absolute path".to_owned());
                }
                socket = Some(path);
            }
            _ => return Err(format!("{pair:?} is unknown; only socket=/path is taken")),
        }
    }
    Ok(socket)
}

fn parse_authority(authority: &str, default: u16) -> Result<(String, u16), String> {
    if authority.contains('@') {
        return Err("a user name is of no use: nobody asks for it".to_owned());
    }
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("a \"]\" is missing")?;
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(format!("{rest:?} after \"]\" makes no sense")),
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() {
        return Err("the host is missing".to_owned());
    }
    let port = match port {
        None => default,
        Some(port) => match port.parse() {
            Ok(port) if port != 0 => port,
            _ => return Err(format!("the port {port:?} is no number from 1 to 65535")),
        },
    };
    Ok((host.to_owned(), port))
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte.unwrap_or(0)).to_digit(16);
        let (high, low) = (digit(rest.next()), digit(rest.next()));
        let decoded = high
            .zip(low)
            .and_then(|(h, l)| u8::try_from(h * 16 + l).ok());
        bytes.push(decoded.ok_or_else(|| format!("{text:?} has a \"%\" without two digits"))?);
    }
    String::from_utf8(bytes).map_err(|_| format!("{text:?} is not UTF-8"))
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~:@".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn every_form_is_understood_and_shown_in_full() {
        for (text, shown, name, place) in [
            (
                "qemu:///system",
                "qemu+unix:///system",
                "qemu:///system",
                "/run/libvirt/libvirt-sock",
            ),
            (
                "qemu+unix:///system",
                "qemu+unix:///system",
                "qemu:///system",
                "/run/libvirt/libvirt-sock",
            ),
            (
                "qemu+unix:///session?socket=/a%20b",
                "qemu+unix:///session?socket=/a%20b",
                "qemu:///session",
                "/a b",
            ),
            (
                "qemu+tcp://hv1/system",
                "qemu+tcp://hv1/system",
                "qemu:///system",
                "hv1:16509",
            ),
            (
                "qemu+tcp://hv1:16509/system",
                "qemu+tcp://hv1/system",
                "qemu:///system",
                "hv1:16509",
            ),
            (
                "qemu+tcp://[::1]:7/system",
                "qemu+tcp://[::1]:7/system",
                "qemu:///system",
                "::1:7",
            ),
            (
                "ch+tls://[fe80::1]/system",
                "ch+tls://[fe80::1]/system",
                "ch:///system",
                "fe80::1:16514",
            ),
            (
                "qemu://hv1/system",
                "qemu+tls://hv1/system",
                "qemu:///system",
                "hv1:16514",
            ),
            (
                "ch:///system",
                "ch+unix:///system",
                "ch:///system",
                "/run/libvirt/libvirt-sock",
            ),
            (
                "test:///default",
                "test+unix:///default",
                "test:///default",
                "/run/libvirt/libvirt-sock",
            ),
            (
                "test+unix:///default?socket=/s",
                "test+unix:///default?socket=/s",
                "test:///default",
                "/s",
            ),
        ] {
            let uri = uri(text);
            assert_eq!(uri.to_string(), shown, "{text}");
            assert_eq!(uri.name(), name, "{text}");
            let found = match &uri.transport {
                Transport::Unix(_) => uri.socket().unwrap().display().to_string(),
                Transport::Tcp(host, port) | Transport::Tls(host, port) => format!("{host}:{port}"),
            };
            assert_eq!(found, place, "{text}");
        }
    }

    #[test]
    fn what_is_no_uri_says_why_and_how_to_write_it() {
        for (text, problem) in [
            ("", "missing"),
            ("qemu", "missing"),
            ("xen:///system", "none of qemu, ch, test"),
            ("qemu+ssh://h/system", "none of unix, tcp, tls"),
            ("qemu+unix://h/system", "has no host"),
            ("qemu+tcp:///system", "host is missing"),
            ("qemu+tcp://h", "path is missing"),
            ("qemu+tcp://h/", "path is empty"),
            ("qemu+tcp://h:x/system", "port"),
            ("qemu+tcp://h:0/system", "port"),
            ("qemu+tcp://h:65536/system", "port"),
            ("qemu+tcp://[::1/system", "\"]\" is missing"),
            ("qemu+tcp://[::1]x/system", "makes no sense"),
            ("qemu+tcp://u@h/system", "user name"),
            ("qemu+tcp://h/system?socket=/s", "goes with unix"),
            ("qemu:///system?no_verify=1", "only socket="),
            ("qemu:///system?socket=s", "absolute"),
            ("qemu:///system?socket=/%f", "two digits"),
            ("qemu:///session", "add ?socket="),
        ] {
            let error = text.parse::<Uri>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
            assert!(error.contains("write for example"), "{error}");
        }
    }

    #[test]
    fn a_socket_is_added_only_where_none_is_named() {
        let with = |text: &str| uri(text).with_socket(Path::new("/other"));
        assert_eq!(with("qemu:///system").socket(), Some(Path::new("/other")));
        assert_eq!(
            with("qemu:///system?socket=/s").socket(),
            Some(Path::new("/s"))
        );
        assert_eq!(with("qemu+tcp://h/system").socket(), None);
        assert!(with("qemu+tcp://h/system").is_plain_tcp());
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_shown_is_understood(text in ".{0,60}", path in "/.{0,30}") {
            if let Ok(uri) = text.parse::<Uri>() {
                prop_assert_eq!(&uri.to_string().parse::<Uri>().unwrap(), &uri);
            }
            let named = uri("qemu:///system").with_socket(Path::new(&path));
            prop_assert_eq!(named.to_string().parse::<Uri>().unwrap(), named);
        }
    }
}
