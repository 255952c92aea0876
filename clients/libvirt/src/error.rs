//! What can go wrong, and "not supported" as a value.

use std::time::Duration;

use cobalt_wire::ConnectError;
use thiserror::Error;
use uuid::Uuid;

use crate::domain::Domain;
use crate::message::FrameError;
use crate::xdr::{Reader, XdrError, XdrResult};

/// Numbers of libvirt's errors (`virErrorNumber`) that callers tell apart.
pub mod codes {
    /// Something inside libvirt.
    pub const INTERNAL_ERROR: i32 = 1;
    /// The driver has no such function.
    pub const NO_SUPPORT: i32 = 3;
    /// An argument makes no sense.
    pub const INVALID_ARG: i32 = 8;
    /// The operation failed.
    pub const OPERATION_FAILED: i32 = 9;
    /// The RPC layer has something to say.
    pub const RPC: i32 = 39;
    /// There is no such domain.
    pub const NO_DOMAIN: i32 = 42;
    /// Not in this state of the domain.
    pub const OPERATION_INVALID: i32 = 55;
    /// There is no such secret.
    pub const NO_SECRET: i32 = 66;
    /// The configuration asks for what this host cannot do.
    pub const CONFIG_UNSUPPORTED: i32 = 67;
    /// libvirt itself waited too long, often for a lock.
    pub const OPERATION_TIMEOUT: i32 = 68;
    /// The driver does not take this argument.
    pub const ARGUMENT_UNSUPPORTED: i32 = 74;
    /// Somebody aborted it.
    pub const OPERATION_ABORTED: i32 = 78;
    /// The domain has no such metadata.
    pub const NO_DOMAIN_METADATA: i32 = 80;
    /// The driver cannot do it here.
    pub const OPERATION_UNSUPPORTED: i32 = 84;
}

/// What libvirt said when it refused something.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct LibvirtError {
    /// The number of the error (`virErrorNumber`); see [`codes`].
    pub code: i32,
    /// The part of libvirt that says so (`virErrorDomain`).
    pub domain: i32,
    /// How bad it is: 1 is a warning, 2 an error.
    pub level: i32,
    /// What it says.
    pub message: String,
    /// The parts of the message, where libvirt gives them.
    pub details: [Option<String>; 3],
    /// Two numbers whose meaning depends on the code, most often an `errno`.
    pub numbers: [i32; 2],
    /// The domain it is about, if libvirt says so.
    pub about_domain: Option<Domain>,
    /// Name and UUID of the network it is about, if libvirt says so.
    pub about_network: Option<(String, Uuid)>,
}

impl LibvirtError {
    pub(crate) fn read(reader: &mut Reader<'_>) -> XdrResult<Self> {
        let code = reader.i32()?;
        let domain = reader.i32()?;
        let message = reader.optional(Reader::string)?;
        let level = reader.i32()?;
        let about_domain = reader.optional(Reader::domain)?;
        let details = [
            reader.optional(Reader::string)?,
            reader.optional(Reader::string)?,
            reader.optional(Reader::string)?,
        ];
        let numbers = [reader.i32()?, reader.i32()?];
        let about_network = reader.optional(|reader| Ok((reader.string()?, reader.uuid()?)))?;
        Ok(Self {
            code,
            domain,
            level,
            message: message.unwrap_or_else(|| format!("error {code} without a message")),
            details,
            numbers,
            about_domain,
            about_network,
        })
    }

    /// A server that is older than a procedure does not know its number. There is no code for it.
    fn is_unknown_procedure(&self) -> bool {
        let says = |text| self.message.contains(text);
        self.code == codes::RPC && (says("unknown procedure") || says("Cannot find program"))
    }
}

/// Why a connection is over.
pub type Closed = cobalt_wire::Closed<FrameError>;

/// What can go wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection to be had, or the certificates are of no use.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// libvirt wants an authentication that this client does not have.
    #[error(
        "libvirt wants {methods} before it answers, which this client does not do: \
         set auth_unix_rw, auth_tcp or auth_tls to \"none\" in libvirtd.conf, and restrict the socket \
         by its group or use TLS with client certificates"
    )]
    Authentication {
        /// What it offers.
        methods: String,
    },
    /// libvirt did not answer in time. It may still do what it was asked for.
    #[error("libvirt did not answer within {after:?} ({procedure})")]
    Timeout {
        /// What it was asked for.
        procedure: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection is over.
    #[error("the connection to libvirt is over: {0}")]
    Closed(Closed),
    /// An answer is not what the protocol says. The connection goes on.
    #[error("libvirt's answer cannot be read ({procedure}): {problem}")]
    Protocol {
        /// What was asked.
        procedure: &'static str,
        /// What is wrong with the answer.
        problem: XdrError,
    },
    /// libvirt refused.
    #[error("{error} ({procedure})")]
    Libvirt {
        /// What it was asked for.
        procedure: &'static str,
        /// What it said.
        error: Box<LibvirtError>,
    },
    /// The caller asked for something that cannot be sent.
    #[error("{0}")]
    BadArgument(String),
}

impl Error {
    /// The connection is over; a new one may work.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// There was no answer in time.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. } | Self::Connect(ConnectError::Timeout { .. })
        )
    }

    /// What libvirt said, if it is libvirt that refused.
    pub fn libvirt(&self) -> Option<&LibvirtError> {
        match self {
            Self::Libvirt { error, .. } => Some(error),
            _ => None,
        }
    }

    /// The number of libvirt's error; see [`codes`].
    pub fn code(&self) -> Option<i32> {
        self.libvirt().map(|error| error.code)
    }

    /// There is no such domain.
    pub fn is_no_domain(&self) -> bool {
        self.code() == Some(codes::NO_DOMAIN)
    }

    /// There is no such secret.
    pub fn is_no_secret(&self) -> bool {
        self.code() == Some(codes::NO_SECRET)
    }

    /// Not in this state of the domain, for example because it does not run.
    pub fn is_operation_invalid(&self) -> bool {
        self.code() == Some(codes::OPERATION_INVALID)
    }

    /// This driver, or this version of libvirt, cannot do it at all.
    pub fn is_not_supported(&self) -> bool {
        let Some(error) = self.libvirt() else {
            return false;
        };
        error.is_unknown_procedure()
            || matches!(
                error.code,
                codes::NO_SUPPORT
                    | codes::OPERATION_UNSUPPORTED
                    | codes::ARGUMENT_UNSUPPORTED
                    | codes::CONFIG_UNSUPPORTED
            )
    }
}

/// "Not supported" as a value.
///
/// Drivers differ in what they can do. Who can do without an answer says so:
///
/// ```
/// use cobalt_libvirt::{Connection, Error, StatsGroups, Supported};
///
/// async fn running(libvirt: &Connection) -> Result<Option<usize>, Error> {
///     let stats = libvirt.all_stats(StatsGroups::STATE).await.supported()?;
///     Ok(stats.map(|domains| domains.len()))
/// }
/// ```
pub trait Supported<T> {
    /// `None` where the driver cannot do it; see [`Error::is_not_supported`].
    fn supported(self) -> Result<Option<T>, Error>;
}

impl<T> Supported<T> for Result<T, Error> {
    fn supported(self) -> Result<Option<T>, Error> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_not_supported() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::xdr::Writer;

    fn refusal(code: i32, message: Option<&str>) -> LibvirtError {
        let bytes = Writer::new()
            .i32(code)
            .i32(7)
            .optional_string(message)
            .i32(2)
            .bool(false)
            .optional_string(Some("%s"))
            .optional_string(message)
            .optional_string(None)
            .i32(-1)
            .i32(5)
            .bool(false)
            .into_bytes();
        LibvirtError::read(&mut Reader::new(&bytes)).unwrap()
    }

    fn error(code: i32, message: &str) -> Error {
        Error::Libvirt {
            procedure: "get domain statistics",
            error: Box::new(refusal(code, Some(message))),
        }
    }

    #[test]
    fn all_of_an_error_is_read() {
        let bytes = Writer::new()
            .i32(codes::NO_DOMAIN)
            .i32(10)
            .optional_string(Some("Domain not found"))
            .i32(2)
            .bool(true)
            .domain(&Domain {
                name: "g1".to_owned(),
                uuid: Uuid::nil(),
                id: Some(4),
            })
            .optional_string(Some("a"))
            .optional_string(None)
            .optional_string(Some("c"))
            .i32(1)
            .i32(2)
            .bool(true)
            .string("net")
            .uuid(Uuid::max())
            .into_bytes();
        let error = LibvirtError::read(&mut Reader::new(&bytes)).unwrap();
        assert_eq!((error.code, error.domain, error.level), (42, 10, 2));
        assert_eq!(error.message, "Domain not found");
        assert_eq!(error.details, [Some("a".into()), None, Some("c".into())]);
        assert_eq!(error.numbers, [1, 2]);
        assert_eq!(error.about_domain.unwrap().id, Some(4));
        assert_eq!(error.about_network, Some(("net".into(), Uuid::max())));
        assert_eq!(refusal(9, None).message, "error 9 without a message");
    }

    #[test]
    fn errors_are_told_apart_by_their_codes() {
        for code in [3, 67, 74, 84] {
            assert!(error(code, "no").is_not_supported(), "{code}");
            assert!(matches!(
                Err::<(), _>(error(code, "no")).supported(),
                Ok(None)
            ));
        }
        assert!(error(39, "unknown procedure: 500").is_not_supported());
        assert!(!error(39, "packet too large").is_not_supported());
        assert!(!error(1, "unknown procedure: 500").is_not_supported());
        assert!(error(42, "gone").is_no_domain());
        assert!(error(66, "gone").is_no_secret());
        assert!(error(55, "not running").is_operation_invalid());
        assert_eq!(error(9, "no").code(), Some(9));
        assert!(Err::<(), _>(error(9, "no")).supported().is_err());
        assert_eq!(error(9, "no").to_string(), "no (get domain statistics)");
        assert!(matches!(Ok(1).supported(), Ok(Some(1))));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(LibvirtError::read(&mut Reader::new(&bytes)));
        }
    }
}
