//! Certificates and keys: of a Kubernetes cluster, of libvirt, of ssh. They live as long as the lab.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

/// A certificate authority.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// The certificate authority of a cluster and the directory of its files.
#[derive(Debug)]
pub struct Pki {
    dir: PathBuf,
    ca: Authority,
}

/// A certificate and its key, as PEM.
#[derive(Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Pki {
    /// Makes everything that the control plane needs.
    pub fn create(dir: &Path, api_addresses: &[IpAddr]) -> Result<Self> {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("failed to make {}", dir.display()))?;
        let ca = Authority::new("kubernetes")?;
        let front = Authority::new("front-proxy")?;
        let pki = Self {
            dir: dir.to_owned(),
            ca,
        };
        pki.write("ca.crt", &pki.ca.pem())?;
        pki.write("ca.key", &pki.ca.0.key().serialize_pem())?;
        pki.write("front-ca.crt", &front.pem())?;
        pki.save("front-client", &front.issue("front-proxy", None, &[])?)?;

        let accounts = KeyPair::generate()?;
        pki.write("service-accounts.key", &accounts.serialize_pem())?;
        pki.write("service-accounts.pub", &accounts.public_key_pem())?;

        let mut names: Vec<SanType> = api_addresses
            .iter()
            .copied()
            .map(SanType::IpAddress)
            .collect();
        for name in [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ] {
            names.push(SanType::DnsName(name.try_into()?));
        }
        pki.save("apiserver", &pki.ca.issue("kube-apiserver", None, &names)?)?;
        pki.save(
            "apiserver-kubelet-client",
            &pki.client("kube-apiserver", "system:masters")?,
        )?;
        Ok(pki)
    }

    /// A client certificate for a user in a group.
    pub fn client(&self, user: &str, group: &str) -> Result<Identity> {
        self.ca.issue(user, Some(group), &[])
    }

    /// The certificate of a kubelet: it serves with it and is the node's identity.
    pub fn node(&self, name: &str, address: IpAddr) -> Result<Identity> {
        let user = format!("system:node:{name}");
        self.ca
            .issue(&user, Some("system:nodes"), &host_names(name, address)?)
    }

    /// The certificate of the cluster's authority.
    pub fn ca_certificate(&self) -> String {
        self.ca.pem()
    }

    /// A kubeconfig that carries its credentials, so that it works wherever it is copied to.
    pub fn kubeconfig(&self, cluster: &str, server: &str, identity: &Identity) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": cluster,
            "clusters": [{ "name": cluster, "cluster": {
                "server": server,
                "certificate-authority-data": base64(&self.ca.pem()),
            }}],
            "users": [{ "name": cluster, "user": {
                "client-certificate-data": base64(&identity.certificate),
                "client-key-data": base64(&identity.key),
            }}],
            "contexts": [{ "name": cluster, "context": { "cluster": cluster, "user": cluster }}],
        })
        .to_string()
    }

    /// Writes a kubeconfig for a component and returns its path.
    pub fn component(&self, cluster: &str, server: &str, user: &str) -> Result<PathBuf> {
        let config = self.kubeconfig(cluster, server, &self.client(user, "")?);
        let name = format!("{}.conf", user.trim_start_matches("system:"));
        self.write(&name, &config)?;
        Ok(self.dir.join(name))
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    fn save(&self, name: &str, identity: &Identity) -> Result<()> {
        self.write(&format!("{name}.crt"), &identity.certificate)?;
        self.write(&format!("{name}.key"), &identity.key)
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        write_private(&self.dir.join(name), content)
    }
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, content: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("failed to write {}", path.display()))
}

impl Authority {
    /// Makes one.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        validity(&mut params);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self(issuer))
    }

    /// Its own certificate, as PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate with which a host serves and calls others.
    pub fn host(&self, name: &str, address: IpAddr) -> Result<Identity> {
        self.issue(name, None, &host_names(name, address)?)
    }

    /// A certificate for a client.
    pub fn client(&self, name: &str) -> Result<Identity> {
        self.issue(name, None, &[])
    }

    fn issue(&self, user: &str, group: Option<&str>, names: &[SanType]) -> Result<Identity> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.subject_alt_names = names.to_vec();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            // libvirt refuses certificates without it.
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        validity(&mut params);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A key pair for ssh: of a host, or of who logs in.
#[derive(Debug)]
pub struct SshKey {
    /// The private key, as PEM.
    pub private: String,
    /// The public key, as in `authorized_keys`.
    pub public: String,
}

impl SshKey {
    /// Makes one.
    pub fn new() -> Result<Self> {
        // ssh reads this format of keys with NIST's curves only.
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        Ok(Self {
            private: key.serialize_pem(),
            public: ssh_public_key(key.public_key_raw()),
        })
    }
}

/// RFC 5656: the type, the curve and the point, each with its length before it.
fn ssh_public_key(point: &[u8]) -> String {
    use base64::Engine;
    const TYPE: &str = "ecdsa-sha2-nistp256";
    let mut blob = Vec::new();
    for field in [TYPE.as_bytes(), b"nistp256", point] {
        let length = u32::try_from(field.len()).unwrap_or_default();
        blob.extend(length.to_be_bytes());
        blob.extend(field);
    }
    let blob = base64::engine::general_purpose::STANDARD.encode(blob);
    format!("{TYPE} {blob}")
}

fn host_names(name: &str, address: IpAddr) -> Result<[SanType; 2]> {
    Ok([
        SanType::DnsName(name.try_into()?),
        SanType::IpAddress(address),
    ])
}

/// From yesterday, for clocks that are a little off, for a year: longer than any lab lives.
fn validity(params: &mut CertificateParams) {
    let now = time::OffsetDateTime::now_utc();
    params.not_before = now - time::Duration::days(1);
    params.not_after = now + time::Duration::days(365);
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}
