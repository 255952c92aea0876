//! Where a server is: remotes as Open vSwitch's own tools take them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The port of OVSDB, where a remote names none.
const OVSDB_PORT: u16 = 6640;

/// Where a server is.
///
/// ```
/// use cobalt_ovs::Remote;
///
/// let local: Remote = "unix:/run/openvswitch/db.sock".parse()?;
/// assert_eq!(local, Remote::Unix("/run/openvswitch/db.sock".into()));
/// let southbound = Remote::list("ssl:10.0.0.1:6642,ssl:10.0.0.2:6642")?;
/// assert_eq!(southbound.len(), 2);
/// # Ok::<(), cobalt_ovs::RemoteError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remote {
    /// A socket of this machine.
    Unix(PathBuf),
    /// Over the network, readable by everyone.
    Tcp(String, u16),
    /// Over the network, encrypted, both sides with certificates.
    Ssl(String, u16),
}

/// Why a text is no remote.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// It is none of the known kinds.
    #[error(
        "{0:?} is no remote of a client: write unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT \
         (an IPv6 address in brackets)"
    )]
    Kind(String),
    /// The part after the kind makes no sense.
    #[error("{0:?} names no host and port: write HOST:PORT, an IPv6 address in brackets")]
    Address(String),
    /// The list is empty.
    #[error("no remote is named: write at least one, separated by commas")]
    Empty,
}

impl Remote {
    /// Reads a list as in `external_ids:ovn-remote`, separated by commas.
    pub fn list(text: &str) -> Result<Vec<Self>, RemoteError> {
        let parts = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let remotes: Vec<Self> = parts.map(str::parse).collect::<Result<_, _>>()?;
        if remotes.is_empty() {
            return Err(RemoteError::Empty);
        }
        Ok(remotes)
    }
}

impl FromStr for Remote {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let unknown = || RemoteError::Kind(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        match kind {
            "unix" if !rest.is_empty() => Ok(Self::Unix(rest.into())),
            "tcp" => address(rest).map(|(host, port)| Self::Tcp(host, port)),
            "ssl" => address(rest).map(|(host, port)| Self::Ssl(host, port)),
            _ => Err(unknown()),
        }
    }
}

fn address(text: &str) -> Result<(String, u16), RemoteError> {
    let wrong = || RemoteError::Address(text.to_owned());
    let (host, rest) = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']').ok_or_else(wrong)?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| wrong())?,
        None if rest.is_empty() => OVSDB_PORT,
        None => return Err(wrong()),
    };
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, host, port) = match self {
            Self::Unix(path) => return write!(f, "unix:{}", path.display()),
            Self::Tcp(host, port) => ("tcp", host, port),
            Self::Ssl(host, port) => ("ssl", host, port),
        };
        if host.contains(':') {
            write!(f, "{kind}:[{host}]:{port}")
        } else {
            write!(f, "{kind}:{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn remotes_are_written_as_open_vswitch_writes_them() {
        for text in [
            "unix:/run/openvswitch/db.sock",
            "tcp:10.0.0.1:6642",
            "ssl:[fd00::1]:6642",
            "tcp:ovn.example:6641",
        ] {
            assert_eq!(text.parse::<Remote>().unwrap().to_string(), text);
        }
        let default: Remote = "tcp:10.0.0.1".parse().unwrap();
        assert_eq!(default.to_string(), "tcp:10.0.0.1:6640");
        let default: Remote = "ssl:[::1]".parse().unwrap();
        assert_eq!(default, Remote::Ssl("::1".to_owned(), 6640));
    }

    #[test]
    fn what_is_no_remote_says_how_to_write_one() {
        for text in ["", "unix:", "ptcp:6640", "punix:/x", "http://x", "10.0.0.1"] {
            let error = text.parse::<Remote>().unwrap_err();
            assert!(error.to_string().contains("unix:PATH"), "{text}: {error}");
        }
        for text in [
            "tcp:",
            "tcp::6640",
            "tcp:h:0",
            "tcp:h:70000",
            "ssl:[::1",
            "ssl:[::1]x",
        ] {
            let error = text.parse::<Remote>().unwrap_err();
            assert!(matches!(error, RemoteError::Address(_)), "{text}: {error}");
        }
        assert_eq!(Remote::list(" , "), Err(RemoteError::Empty));
        assert_eq!(Remote::list("tcp:a:1, tcp:b:2,").unwrap().len(), 2);
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_written_back(text in ".{0,40}", kind in 0..4_usize) {
            let kind = ["unix:", "tcp:", "ssl:", ""][kind];
            if let Ok(remote) = format!("{kind}{text}").parse::<Remote>() {
                prop_assert_eq!(remote.to_string().parse::<Remote>(), Ok(remote));
            }
        }
    }
}
