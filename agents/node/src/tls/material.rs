//! What the Secret contains, and whether libvirt and QEMU can use it. Pure: time is an argument.
//!
//! libvirtd does not start with a bad certificate, so what it or QEMU would refuse is refused here,
//! before any file is touched.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, InconsistentKeys, RootCertStore};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The keys of the Secret, as cert-manager writes them.
pub const CA: &str = "ca.crt";
/// The certificate of the node, with the intermediate ones after it.
pub const CERTIFICATE: &str = "tls.crt";
/// Its private key.
pub const KEY: &str = "tls.key";

/// libvirt reads no more of a PEM file.
const LARGEST: usize = 1 << 16;

/// The TLS material of a node, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// The authorities that are trusted.
    pub ca: Arc<[u8]>,
    /// The certificate and the intermediate ones.
    pub certificate: Arc<[u8]>,
    /// The private key. Never shown.
    pub key: Arc<[u8]>,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

/// Why a Secret cannot be used. It names the key of the Secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not there.
    #[error("{0} is missing or empty")]
    Missing(&'static str),
    /// libvirt would not read it.
    #[error("{0} is larger than 64 KiB")]
    TooLarge(&'static str),
    /// It is not PEM, or not a certificate or key in it.
    #[error("{field} cannot be read: {why}")]
    Unreadable {
        /// The key of the Secret.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Certificate and key are of two pairs.
    #[error("tls.key is not the key of the certificate in tls.crt")]
    OtherKey,
    /// It is not valid any more.
    #[error("tls.crt has expired on {0}")]
    Expired(Timestamp),
    /// It is not valid yet.
    #[error("tls.crt is not valid before {0}")]
    NotYet(Timestamp),
    /// An authority is of no use. libvirtd does not start with one.
    #[error("ca.crt: \"{subject}\" {why}")]
    Authority {
        /// Which one.
        subject: String,
        /// What is wrong.
        why: String,
    },
    /// It is for another host.
    #[error("tls.crt is for {}, and not for {}", list(.has), list(.wants))]
    OtherHost {
        /// Its names and addresses.
        has: Vec<String>,
        /// One of these is needed.
        wants: Vec<String>,
    },
    /// It does not permit what it is needed for.
    #[error("tls.crt does not permit {0}: libvirt and QEMU refuse it")]
    Usage(&'static str),
    /// It cannot be traced to `ca.crt`.
    #[error("tls.crt is not signed by an authority in ca.crt: {0}")]
    Chain(String),
}

impl Refused {
    /// Whether time is the only thing that is wrong.
    #[must_use]
    pub fn is_expiry(&self) -> bool {
        matches!(self, Self::Expired(_) | Self::NotYet(_))
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "no host at all".to_owned(),
        names => names.join(" or "),
    }
}

/// The host that a certificate has to be for: one of its names or its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The name of the node.
    pub node: String,
    /// Its address, where it is known.
    pub address: Option<IpAddr>,
}

impl Host {
    /// The node's name, its first label, its address.
    fn names(&self) -> Vec<String> {
        let short = self.node.split('.').next().unwrap_or_default().to_owned();
        let mut names = vec![self.node.clone(), short];
        names.dedup();
        names.extend(self.address.map(|address| address.to_string()));
        names
    }
}

/// What is known of a usable certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Whose it is.
    pub subject: String,
    /// Its number, by which people tell it from the one before.
    pub serial: String,
    /// Valid from here on.
    pub not_before: Timestamp,
    /// Valid up to here.
    pub not_after: Timestamp,
}

impl Facts {
    /// When a fifth of its life is left: a renewal has failed then.
    #[must_use]
    pub fn warn_at(&self) -> Timestamp {
        let (from, until) = (self.not_before.as_second(), self.not_after.as_second());
        Timestamp::from_second(until - (until - from) / 5).unwrap_or(self.not_after)
    }
}

/// The certificate of the node, checked, and ready to be shown to a peer.
#[derive(Debug, Clone)]
pub struct Identity {
    /// For people.
    pub facts: Facts,
    /// For a handshake.
    pub key: Arc<CertifiedKey>,
}

impl Material {
    /// Takes it from a Secret.
    ///
    /// # Errors
    ///
    /// When a part is missing or too large.
    pub fn from_data(data: Option<&BTreeMap<String, ByteString>>) -> Result<Self, Refused> {
        let field = |name: &'static str| -> Result<Arc<[u8]>, Refused> {
            let content = data.and_then(|data| data.get(name)).map(|bytes| &bytes.0);
            match content {
                Some(bytes) if bytes.len() > LARGEST => Err(Refused::TooLarge(name)),
                Some(bytes) if !bytes.trim_ascii().is_empty() => Ok(bytes.as_slice().into()),
                _ => Err(Refused::Missing(name)),
            }
        };
        Ok(Self {
            ca: field(CA)?,
            certificate: field(CERTIFICATE)?,
            key: field(KEY)?,
        })
    }

    /// Checks that libvirt and QEMU of this host can serve with it and call others with it.
    ///
    /// # Errors
    ///
    /// When they could not.
    pub fn check(&self, host: &Host, now: Timestamp) -> Result<Identity, Refused> {
        let authorities = certificates(CA, &self.ca)?;
        let chain = certificates(CERTIFICATE, &self.certificate)?;
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(Refused::Missing(CERTIFICATE));
        };
        let key = self.fitting_key(&chain)?;
        let facts = check_leaf(leaf, now)?;
        for authority in &authorities {
            check_authority(authority, now)?;
        }
        check_chain(&authorities, leaf, intermediates, host, now)?;
        Ok(Identity {
            facts,
            key: Arc::new(key),
        })
    }

    fn fitting_key(&self, chain: &[CertificateDer<'static>]) -> Result<CertifiedKey, Refused> {
        let unreadable = |why: String| Refused::Unreadable { field: KEY, why };
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| unreadable(error.to_string()))?;
        let provider = rustls::crypto::ring::default_provider();
        match CertifiedKey::from_der(chain.to_vec(), key, &provider) {
            Ok(key) => Ok(key),
            Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                Err(Refused::OtherKey)
            }
            Err(error) => Err(unreadable(error.to_string())),
        }
    }
}

fn certificates(field: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Refused> {
    let unreadable = |why: String| Refused::Unreadable { field, why };
    let all: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(error.to_string()))?;
    if all.is_empty() {
        return Err(unreadable("there is no PEM certificate in it".to_owned()));
    }
    for one in &all {
        parse(field, one)?;
    }
    Ok(all)
}

fn parse<'a>(field: &'static str, der: &'a [u8]) -> Result<X509Certificate<'a>, Refused> {
    match X509Certificate::from_der(der) {
        Ok((_, certificate)) => Ok(certificate),
        Err(error) => Err(Refused::Unreadable {
            field,
            why: error.to_string(),
        }),
    }
}

/// What the certificate itself says, in the order in which people look for it.
fn check_leaf(leaf: &CertificateDer<'_>, now: Timestamp) -> Result<Facts, Refused> {
    let parsed = parse(CERTIFICATE, leaf)?;
    let (not_before, not_after) = validity(&parsed);
    if now > not_after {
        return Err(Refused::Expired(not_after));
    }
    if now < not_before {
        return Err(Refused::NotYet(not_before));
    }
    let unreadable = |error: x509_parser::error::X509Error| Refused::Unreadable {
        field: CERTIFICATE,
        why: error.to_string(),
    };
    if let Some(usage) = parsed.key_usage().map_err(unreadable)? {
        // libvirt only logs it where the extension is not critical.
        if usage.critical && !usage.value.digital_signature() {
            return Err(Refused::Usage("digital signatures"));
        }
        if usage.critical && !usage.value.key_encipherment() {
            return Err(Refused::Usage("key encipherment"));
        }
    }
    Ok(Facts {
        subject: parsed.subject().to_string(),
        serial: parsed.raw_serial_as_string(),
        not_before,
        not_after,
    })
}

fn check_authority(authority: &CertificateDer<'_>, now: Timestamp) -> Result<(), Refused> {
    let parsed = parse(CA, authority)?;
    let refused = |why: String| {
        let subject = parsed.subject().to_string();
        Err(Refused::Authority { subject, why })
    };
    let (not_before, not_after) = validity(&parsed);
    if now > not_after {
        return refused(format!("has expired on {not_after}"));
    }
    if now < not_before {
        return refused(format!("is not valid before {not_before}"));
    }
    if !parsed.is_ca() {
        return refused("is not an authority".to_owned());
    }
    if let Ok(Some(usage)) = parsed.key_usage()
        && !usage.value.key_cert_sign()
    {
        return refused("may not sign certificates".to_owned());
    }
    Ok(())
}

/// The way to an authority, the names, and that it is good for both sides of a connection.
fn check_chain(
    authorities: &[CertificateDer<'static>],
    leaf: &CertificateDer<'static>,
    intermediates: &[CertificateDer<'static>],
    host: &Host,
    now: Timestamp,
) -> Result<(), Refused> {
    let chain = |error: &dyn fmt::Display| Refused::Chain(error.to_string());
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots
            .add(authority.clone())
            .map_err(|error| Refused::Unreadable {
                field: CA,
                why: error.to_string(),
            })?;
    }
    let roots = Arc::new(roots);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
        u64::try_from(now.as_second()).unwrap_or(0),
    ));
    let server =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| chain(&error))?;
    let client = WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| chain(&error))?;
    let wants = host.names();
    let mut found = false;
    for name in &wants {
        let Ok(name) = ServerName::try_from(name.as_str()) else {
            continue;
        };
        match server.verify_server_cert(leaf, intermediates, &name, &[], now) {
            Ok(_) => found = true,
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => {}
            Err(error) => return Err(chain_or_usage(&error, "serving")),
        }
    }
    if !found {
        let has = parse(CERTIFICATE, leaf).map(|parsed| names(&parsed))?;
        return Err(Refused::OtherHost { has, wants });
    }
    client
        .verify_client_cert(leaf, intermediates, now)
        .map(drop)
        .map_err(|error| chain_or_usage(&error, "calling others, as a migration does"))
}

fn chain_or_usage(error: &rustls::Error, purpose: &'static str) -> Refused {
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => Refused::Usage(purpose),
        rustls::Error::InvalidCertificate(error) => Refused::Chain(error.to_string()),
        error => Refused::Chain(error.to_string()),
    }
}

fn validity(certificate: &X509Certificate<'_>) -> (Timestamp, Timestamp) {
    let validity = certificate.validity();
    let at = |second: i64, or| Timestamp::from_second(second).unwrap_or(or);
    (
        at(validity.not_before.timestamp(), Timestamp::MIN),
        at(validity.not_after.timestamp(), Timestamp::MAX),
    )
}

/// The host names and addresses of a certificate.
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes)
                .ok()
                .map(|four| IpAddr::from(four).to_string()),
            16 => <[u8; 16]>::try_from(*bytes)
                .ok()
                .map(|all| IpAddr::from(all).to_string()),
            _ => None,
        },
        _ => None,
    };
    alternatives
        .value
        .general_names
        .iter()
        .filter_map(name)
        .collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
    };

    use super::*;

    fn now() -> Timestamp {
        "2026-06-15T00:00:00Z".parse().unwrap()
    }

    fn host() -> Host {
        Host {
            node: "hv1.example.org".into(),
            address: Some([10, 0, 0, 1].into()),
        }
    }

    struct Authority(CertifiedIssuer<'static, KeyPair>);

    impl Authority {
        fn new(change: impl FnOnce(&mut CertificateParams)) -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(DnType::CommonName, "lab");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            params.not_before = date_time_ymd(2026, 1, 1);
            params.not_after = date_time_ymd(2036, 1, 1);
            change(&mut params);
            Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
        }

        fn issue(&self, change: impl FnOnce(&mut CertificateParams)) -> Material {
            let mut params = CertificateParams::new(vec!["hv1.example.org".into()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, "hv1");
            params.key_usages = vec![
                KeyUsagePurpose::DigitalSignature,
                KeyUsagePurpose::KeyEncipherment,
            ];
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            params.not_before = date_time_ymd(2026, 6, 1);
            params.not_after = date_time_ymd(2026, 7, 1);
            change(&mut params);
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &self.0).unwrap();
            Material {
                ca: self.0.pem().into_bytes().into(),
                certificate: certificate.pem().into_bytes().into(),
                key: key.serialize_pem().into_bytes().into(),
            }
        }
    }

    fn plain(_: &mut CertificateParams) {}

    fn refusal(material: &Material) -> String {
        material.check(&host(), now()).unwrap_err().to_string()
    }

    #[test]
    fn a_good_certificate_is_described() {
        let identity = Authority::new(plain)
            .issue(plain)
            .check(&host(), now())
            .unwrap();
        assert!(
            identity.facts.subject.contains("CN=hv1"),
            "{:?}",
            identity.facts
        );
        assert_eq!(identity.facts.not_after.to_string(), "2026-07-01T00:00:00Z");
        assert_eq!(identity.facts.warn_at().to_string(), "2026-06-25T00:00:00Z");
    }

    #[test]
    fn a_host_is_known_by_its_name_its_short_name_or_its_address() {
        let authority = Authority::new(plain);
        for (names, good) in [
            (
                vec![SanType::DnsName("hv1.example.org".try_into().unwrap())],
                true,
            ),
            (vec![SanType::DnsName("hv1".try_into().unwrap())], true),
            (vec![SanType::IpAddress([10, 0, 0, 1].into())], true),
            (vec![SanType::DnsName("hv2".try_into().unwrap())], false),
            (vec![SanType::IpAddress([10, 0, 0, 2].into())], false),
            (Vec::new(), false),
        ] {
            let said = format!("{names:?}");
            let material = authority.issue(|params| params.subject_alt_names = names);
            assert_eq!(material.check(&host(), now()).is_ok(), good, "{said}");
        }
        let material = authority.issue(|params| {
            params.subject_alt_names = vec![SanType::DnsName("hv2".try_into().unwrap())];
        });
        let wanted = "tls.crt is for hv2, and not for hv1.example.org or hv1 or 10.0.0.1";
        assert_eq!(refusal(&material), wanted);
    }

    #[test]
    fn what_libvirt_or_qemu_would_refuse_is_refused_with_the_key_of_the_secret() {
        let authority = Authority::new(plain);
        let good = authority.issue(plain);
        let other = Authority::new(plain).issue(plain);
        let with = |ca: &Material, certificate: &Material, key: &Material| Material {
            ca: Arc::clone(&ca.ca),
            certificate: Arc::clone(&certificate.certificate),
            key: Arc::clone(&key.key),
        };
        let text = |text: &str| -> Arc<[u8]> { text.as_bytes().into() };
        let mut garbled = good.certificate.to_vec();
        garbled[60] = b'!';
        for (material, wanted) in [
            (with(&good, &good, &other), "tls.key is not the key"),
            (
                with(&other, &good, &good),
                "tls.crt is not signed by an authority in ca.crt",
            ),
            (
                Material {
                    ca: text("none"),
                    ..good.clone()
                },
                "ca.crt cannot be read",
            ),
            (
                Material {
                    certificate: text("none"),
                    ..good.clone()
                },
                "tls.crt cannot be read",
            ),
            (
                Material {
                    certificate: garbled.into(),
                    ..good.clone()
                },
                "tls.crt cannot be read",
            ),
            (
                Material {
                    key: text("none"),
                    ..good.clone()
                },
                "tls.key cannot be read",
            ),
            (
                Material {
                    ca: Arc::clone(&good.certificate),
                    ..good.clone()
                },
                "is not an authority",
            ),
            (
                authority.issue(|params| params.not_after = date_time_ymd(2026, 6, 14)),
                "tls.crt has expired on 2026-06-14T00:00:00Z",
            ),
            (
                authority.issue(|params| params.not_before = date_time_ymd(2026, 6, 16)),
                "tls.crt is not valid before 2026-06-16T00:00:00Z",
            ),
            (
                authority.issue(|params| params.key_usages.truncate(1)),
                "tls.crt does not permit key encipherment",
            ),
            (
                authority.issue(|params| params.extended_key_usages.truncate(1)),
                "tls.crt does not permit calling others",
            ),
            (
                authority.issue(|params| drop(params.extended_key_usages.remove(0))),
                "tls.crt does not permit serving",
            ),
            (
                Authority::new(|params| params.not_after = date_time_ymd(2026, 6, 2)).issue(plain),
                "ca.crt: \"CN=lab\" has expired on 2026-06-02T00:00:00Z",
            ),
            (
                Authority::new(|params| params.key_usages = vec![KeyUsagePurpose::CrlSign])
                    .issue(plain),
                "ca.crt: \"CN=lab\" may not sign certificates",
            ),
        ] {
            let said = refusal(&material);
            assert!(said.contains(wanted), "\"{said}\" instead of \"{wanted}\"");
        }
    }

    #[test]
    fn a_secret_that_lacks_something_says_what() {
        let good = Authority::new(plain).issue(plain);
        let all = BTreeMap::from([
            (CA.to_owned(), ByteString(good.ca.to_vec())),
            (
                CERTIFICATE.to_owned(),
                ByteString(good.certificate.to_vec()),
            ),
            (KEY.to_owned(), ByteString(good.key.to_vec())),
        ]);
        assert_eq!(Material::from_data(Some(&all)), Ok(good));
        for field in [CA, CERTIFICATE, KEY] {
            let mut some = all.clone();
            some.insert(field.to_owned(), ByteString(b" \n".to_vec()));
            assert_eq!(
                Material::from_data(Some(&some)),
                Err(Refused::Missing(field))
            );
            some.remove(field);
            assert_eq!(
                Material::from_data(Some(&some)),
                Err(Refused::Missing(field))
            );
            some.insert(field.to_owned(), ByteString(vec![b'x'; LARGEST + 1]));
            assert_eq!(
                Material::from_data(Some(&some)),
                Err(Refused::TooLarge(field))
            );
        }
        assert_eq!(Material::from_data(None), Err(Refused::Missing(CA)));
    }

    #[test]
    fn a_key_is_never_shown() {
        let material = Authority::new(plain).issue(plain);
        let key = String::from_utf8(material.key.to_vec()).unwrap();
        let line = key.lines().nth(1).unwrap();
        let identity = material.check(&host(), now()).unwrap();
        let shown = format!("{material:?} {identity:?}");
        assert!(!shown.contains(line), "{shown}");
    }
}
