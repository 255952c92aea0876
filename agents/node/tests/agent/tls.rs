//! TLS material, the key for Ceph and who may read them: real libvirtd of two releases, a real API
//! server with its RBAC.

mod access;
mod ceph_key;
mod certificates;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cobalt_api::conditions::{HypervisorCondition, Reason, Status};
use cobalt_api::hypervisor::Hypervisor;
use cobalt_lab::control::Fault;
use cobalt_lab::guests::MicroDomain;
use cobalt_lab::plan::Flavour;
use cobalt_lab::testing::{ApiServer, api_server, output_inside};
use cobalt_lab::{Lab, LabConfig};
use cobalt_libvirt::{Connection, Options, Uri};
use cobalt_node_agent::ceph::{self, CephConfig, CephMetrics};
use cobalt_node_agent::context::{Conditions, Context, Statement};
use cobalt_node_agent::secrets::{self, SecretsConfig};
use cobalt_node_agent::tls::{self, TlsConfig, TlsMetrics};
use cobalt_runtime::{Health, Observed, Recorder};
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde_json::json;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::support::{Hosts, unique};

const CONDITION: HypervisorCondition = HypervisorCondition::TlsCertificateInstalled;
const PATIENCE: Duration = Duration::from_secs(90);

/// A namespace of its own on the shared API server.
struct Kubernetes {
    server: ApiServer,
    admin: Client,
    namespace: Arc<str>,
}

impl Kubernetes {
    async fn new() -> Self {
        Self::on(api_server().await.unwrap()).await
    }

    async fn on(server: ApiServer) -> Self {
        let namespace = unique("tls");
        let admin = server.client().await.unwrap();
        let object = Namespace {
            metadata: named(&namespace),
            ..Namespace::default()
        };
        let api: Api<Namespace> = Api::all(admin.clone());
        api.create(&PostParams::default(), &object).await.unwrap();
        Self {
            server,
            admin,
            namespace: namespace.into(),
        }
    }

    /// A client with a token instead of the admin's certificate.
    async fn with_token(&self, token: String) -> Client {
        client_with_token(&self.server.kubeconfig, token).await
    }

    async fn put_secret(&self, name: &str, fields: &[(&str, &[u8])]) {
        let field =
            |(name, bytes): &(&str, &[u8])| ((*name).to_owned(), ByteString(bytes.to_vec()));
        let data: BTreeMap<String, ByteString> = fields.iter().map(field).collect();
        let object = Secret {
            metadata: named(name),
            data: Some(data),
            ..Secret::default()
        };
        let api: Api<Secret> = Api::namespaced(self.admin.clone(), &self.namespace);
        let params = PatchParams::apply("test").force();
        api.patch(name, &params, &Patch::Apply(&object))
            .await
            .unwrap();
    }

    async fn put_material(&self, node: &str, material: &Material) {
        let fields: [(&str, &[u8]); 3] = [
            ("ca.crt", material.ca.as_bytes()),
            ("tls.crt", material.certificate.as_bytes()),
            ("tls.key", material.key.as_bytes()),
        ];
        self.put_secret(&tls::secret_name(node), &fields).await;
    }

    /// Waits until an Event about the node with this reason is there, and returns what it says.
    async fn event(&self, uid: &str, reason: &str) -> String {
        let api: Api<Event> = Api::namespaced(self.admin.clone(), "default");
        let is = |event: &Event| {
            let about = event
                .regarding
                .as_ref()
                .and_then(|about| about.uid.as_deref());
            about == Some(uid) && event.reason.as_deref() == Some(reason)
        };
        let mut events = watcher(api, watcher::Config::default())
            .applied_objects()
            .boxed();
        let look = async {
            loop {
                if let Ok(event) = events.next().await.unwrap()
                    && is(&event)
                {
                    return event.note.unwrap_or_default();
                }
            }
        };
        let found = tokio::time::timeout(PATIENCE, look).await;
        found.unwrap_or_else(|_| panic!("no Event {reason}"))
    }
}

/// Waits until something holds that nobody tells of.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let look = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, look).await;
    assert!(found.is_ok(), "never: {what}");
}

async fn client_with_token(kubeconfig: &Path, token: String) -> Client {
    let config = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(config, &Default::default())
        .await
        .unwrap();
    config.auth_info = kube::config::AuthInfo {
        token: Some(token.into()),
        ..Default::default()
    };
    Client::try_from(config).unwrap()
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

/// What the tasks run with, and what the test looks at.
struct Agent {
    ctx: Context,
    libvirt: watch::Sender<Option<Connection>>,
    hypervisor: watch::Sender<Observed<Hypervisor>>,
    cancel: CancellationToken,
    uid: String,
    /// How many tokens it was given.
    tokens: Arc<AtomicU32>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Agent {
    /// An agent of a node whose Hypervisor says this.
    fn new(kubernetes: &Kubernetes, client: Client, node: &str, create: bool) -> Self {
        let uid = format!("{}-{node}", kubernetes.namespace);
        let mut object = Hypervisor::new(node, Default::default());
        object.metadata.uid = Some(uid.clone());
        object.spec.create_cert_manager_certificate = Some(create);
        let (libvirt, libvirt_seen) = watch::channel(None);
        let (hypervisor, hypervisor_seen) = watch::channel(Observed::Present(Arc::new(object)));
        let (recorder, writing) = Recorder::new(kubernetes.admin.clone(), "node-agent", node);
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        tokio::spawn(async move { stop.run_until_cancelled(writing).await });
        let ctx = Context {
            node: node.into(),
            node_label: node.into(),
            namespace: Arc::clone(&kubernetes.namespace),
            client,
            libvirt: libvirt_seen,
            events: broadcast::Sender::new(16),
            hypervisor: hypervisor_seen,
            domains: watch::channel(Default::default()).1,
            conditions: Conditions::default(),
            operating_system: Arc::new(watch::Sender::new(None)),
            update_status: Arc::new(watch::Sender::new(None)),
            recorder,
            health: Health::default(),
        };
        Self {
            ctx,
            libvirt,
            hypervisor,
            cancel,
            uid,
            tokens: Arc::default(),
        }
    }

    /// Starts what reads the Secrets.
    fn read_secrets(
        &self,
        kubernetes: &Kubernetes,
        account_prefix: &str,
    ) -> secrets::SecretsAccess {
        let (output, access) = secrets::channel();
        let mut config = SecretsConfig::new(account_prefix.to_owned());
        config.renew = Duration::from_millis(200);
        let kubeconfig = kubernetes.server.kubeconfig.clone();
        let tokens = Arc::clone(&self.tokens);
        let connect = move |token| {
            let kubeconfig = kubeconfig.clone();
            tokens.fetch_add(1, Ordering::Relaxed);
            async move { Ok(client_with_token(&kubeconfig, token).await) }
        };
        tokio::spawn(secrets::run(
            self.ctx.clone(),
            config,
            connect,
            output,
            self.cancel.clone(),
        ));
        access
    }

    fn install_tls(&self, kubernetes: &Kubernetes, machine: &Machine) -> TlsMetrics {
        let access = self.read_secrets(kubernetes, "");
        let metrics = TlsMetrics::default();
        let config = machine.tls_config();
        let task = tls::run(
            self.ctx.clone(),
            config,
            access,
            metrics.clone(),
            self.cancel.clone(),
        );
        tokio::spawn(task);
        metrics
    }

    /// Waits until the condition says this, and returns its message.
    async fn says(&self, reason: Reason, text: &str) -> String {
        let mut said = self.ctx.conditions.subscribe();
        let is = |all: &BTreeMap<HypervisorCondition, Option<Statement>>| {
            let statement = all.get(&CONDITION).and_then(Option::as_ref);
            statement.is_some_and(|s| s.reason == reason && s.message.contains(text))
        };
        let found = tokio::time::timeout(PATIENCE, said.wait_for(is)).await;
        if found.is_err() {
            let last = self.ctx.conditions.subscribe().borrow().clone();
            panic!("never {reason:?} with \"{text}\"; last: {last:?}");
        }
        let all = found.unwrap().unwrap().clone();
        let statement = all[&CONDITION].clone().unwrap();
        let good = matches!(reason, Reason::Ready);
        assert_eq!(statement.status == Status::True, good, "{statement:?}");
        assert!(CONDITION.reasons().contains(&statement.reason));
        statement.message
    }

    /// Waits until the readiness says this.
    async fn misses(&self, text: &str) {
        let health = &self.ctx.health;
        eventually(text, || {
            health
                .missing()
                .iter()
                .any(|missing| missing.contains(text))
        })
        .await;
    }
}

/// A hypervisor of the lab.
struct Machine<'a> {
    lab: &'a Lab,
    name: &'a str,
    root: PathBuf,
    address: std::net::Ipv4Addr,
}

impl<'a> Machine<'a> {
    async fn new(lab: &'a Lab, name: &'a str) -> Self {
        let status = lab.status().await.unwrap();
        let node = status.nodes.iter().find(|node| node.name == name).unwrap();
        let pid = cobalt_lab::node::pid_one(name, &node.observed).unwrap();
        Self {
            lab,
            name,
            root: format!("/proc/{pid}/root").into(),
            address: node.address,
        }
    }

    fn tls_config(&self) -> TlsConfig {
        TlsConfig {
            pki_path: Some(self.pki("")),
            qemu_group: None,
            admin_socket: self.root.join("run/libvirt/libvirt-admin-sock"),
            tls_address: (self.address, 16514).into(),
            host_ip: Some(self.address.into()),
            issuer_name: "issuer".into(),
        }
    }

    fn pki(&self, name: &str) -> PathBuf {
        self.root.join("etc/pki").join(name)
    }

    async fn connect(&self) -> Connection {
        let socket = self.root.join("run/libvirt/libvirt-sock");
        let uri: Uri = format!("qemu+unix:///system?socket={}", socket.display())
            .parse()
            .unwrap();
        Connection::open(&uri, &Options::default()).await.unwrap()
    }

    /// Runs a script inside; what it wrote, and whether it went well.
    async fn attempt(&self, script: &str) -> (bool, String) {
        let words = ["sh", "-ec", script];
        let output = output_inside(self.lab, self.name, &words).await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    async fn sh(&self, script: &str) -> String {
        let (good, said) = self.attempt(script).await;
        assert!(good, "{}: {script}: {said}", self.name);
        said
    }

    /// Starts libvirtd anew, with these sockets and no others.
    async fn listen(&self, sockets: &[&str]) {
        let sockets: String = sockets
            .iter()
            .map(|name| format!(" {name}.socket"))
            .collect();
        self.sh(&format!(
            "systemctl stop libvirtd.service libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket \
             libvirtd-tls.socket libvirtd-tcp.socket; systemctl start{sockets}; systemctl start libvirtd.service"
        ))
        .await;
    }

    /// The certificate that libvirtd presents.
    async fn served(&self) -> Vec<u8> {
        served((self.address, 16514).into()).await
    }

    /// libvirt's own client connects with the installed certificate.
    async fn virsh_tls(&self) {
        self.sh(&format!("virsh -c qemu+tls://{}/system list", self.name))
            .await;
    }

    fn everything(&self) -> BTreeMap<String, (u32, Vec<u8>)> {
        let folders = ["CA", "libvirt", "libvirt/private", "qemu", "ch"];
        let mut all = BTreeMap::new();
        for folder in folders {
            for entry in std::fs::read_dir(self.pki(folder)).into_iter().flatten() {
                let path = entry.unwrap().path();
                let found = std::fs::symlink_metadata(&path).unwrap();
                if found.is_file() {
                    let name = path.strip_prefix(&self.root).unwrap().display().to_string();
                    all.insert(name, (found.mode() & 0o7777, std::fs::read(&path).unwrap()));
                }
            }
        }
        all
    }
}

/// The certificate that is presented at an address, whatever it is.
async fn served(address: std::net::SocketAddr) -> Vec<u8> {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, SignatureScheme};

    #[derive(Debug)]
    struct Anybody;
    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            rustls::crypto::ring::default_provider()
                .signature_verification_algorithms
                .supported_schemes()
        }
    }

    let config = rustls::ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("anybody").unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    let (_, session) = stream.get_ref();
    session.peer_certificates().unwrap()[0].to_vec()
}

/// PEM of a node.
#[derive(Clone)]
struct Material {
    ca: String,
    certificate: String,
    key: String,
    der: Vec<u8>,
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "a new authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2126, 1, 1);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, node: &str) -> Material {
        self.issue_with(node, |_| {})
    }

    fn issue_with(&self, node: &str, change: impl FnOnce(&mut CertificateParams)) -> Material {
        self.issue_for(node, &KeyPair::generate().unwrap(), change)
    }

    fn issue_for(
        &self,
        node: &str,
        key: &KeyPair,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Material {
        let mut params = CertificateParams::new(vec![node.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, node);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        change(&mut params);
        let certificate = params.signed_by(key, &self.0).unwrap();
        Material {
            ca: self.0.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().to_vec(),
        }
    }
}
