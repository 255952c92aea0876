//! The key with which instances reach Ceph: from this node's Secret into libvirt, through its API.
//!
//! It never is in a file, on a command line, in a log or in an error. libvirt keeps it in memory
//! (the secret is ephemeral), so it is set again whenever libvirt was connected anew, and when the
//! Secret changes. Instances that run are not touched by a new key: QEMU has theirs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use cobalt_libvirt::{Connection, Error, Supported};
use cobalt_runtime::{Backoff, Note, Observed, Severity, chain};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::context::Context;
use crate::secrets::{SecretsAccess, watch_secret};

const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Somebody may have removed it from libvirt.
const RESYNC: Duration = Duration::from_secs(600);
/// Under which name the readiness says what is missing.
const MISSING: &str = "ceph";

/// The keys of the Secret: those of Ceph's CSI driver, and the UUID.
const USER: &str = "userID";
/// The key, as Ceph prints it.
const KEY: &str = "userKey";
/// By which instances name the secret: `rbd_secret_uuid` of Nova. The flag is for Secrets without.
const UUID: &str = "uuid";

/// Which key is installed.
#[derive(Debug, Clone)]
pub struct CephConfig {
    /// The Secret; without it none is installed.
    pub secret_name: Option<String>,
    /// By which instances name the secret, where the Secret does not say.
    pub uuid: Option<Uuid>,
}

/// Counters and gauges. A clone counts into the same.
#[derive(Debug, Clone, Default)]
pub struct CephMetrics {
    /// 1 while libvirt has the key of the Secret.
    pub installed: Gauge,
    /// Times that it was given to libvirt.
    pub installs: Counter,
    /// Times that it could not be.
    pub failures: Counter,
}

impl CephMetrics {
    /// Makes them visible.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "cobalt_node_agent_ceph_secret_installed",
            "Whether libvirt has the key with which instances reach Ceph",
            self.installed.clone(),
        );
        registry.register(
            "cobalt_node_agent_ceph_secret_installs",
            "Times that the key for Ceph was given to libvirt",
            self.installs.clone(),
        );
        registry.register(
            "cobalt_node_agent_ceph_secret_failures",
            "Times that the key for Ceph could not be given to libvirt",
            self.failures.clone(),
        );
    }
}

/// A key for Ceph. Never shown.
#[derive(Clone, PartialEq, Eq)]
struct Key(Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What the Secret says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Credentials {
    user: String,
    key: Key,
    uuid: Uuid,
}

/// Why a Secret cannot be used. It names the key of the Secret and never shows what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("{0} is missing or empty")]
    Missing(&'static str),
    #[error("{USER} is not the name of a client of Ceph, such as nova")]
    User,
    #[error(
        "{KEY} is not a key as Ceph prints it: base64, such as `ceph auth get-key client.nova` shows"
    )]
    Key,
    #[error("{UUID} is not a UUID")]
    Uuid,
    #[error(
        "{UUID} is missing: put it there, or set CEPH_SECRET_UUID to rbd_secret_uuid of nova.conf"
    )]
    NoUuid,
}

impl Credentials {
    fn from_data(
        data: Option<&BTreeMap<String, ByteString>>,
        uuid: Option<Uuid>,
    ) -> Result<Self, Refused> {
        let text = |name: &str| -> Option<&str> {
            let bytes = &data?.get(name)?.0;
            let text = std::str::from_utf8(bytes).ok()?.trim();
            (!text.is_empty()).then_some(text)
        };
        let user = text(USER).ok_or(Refused::Missing(USER))?;
        let user = user.strip_prefix("client.").unwrap_or(user);
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !user.chars().all(plain) {
            return Err(Refused::User);
        }
        let key = text(KEY).ok_or(Refused::Missing(KEY))?;
        let uuid = match text(UUID) {
            Some(uuid) => uuid.parse().map_err(|_| Refused::Uuid)?,
            None => uuid.ok_or(Refused::NoUuid)?,
        };
        Ok(Self {
            user: user.to_owned(),
            key: parse_key(key).ok_or(Refused::Key)?,
            uuid,
        })
    }

    /// The secret as libvirt knows it. Nobody can read its value back.
    fn xml(&self) -> String {
        let (uuid, user) = (self.uuid, &self.user);
        format!(
            "<secret ephemeral='yes' private='yes'><uuid>{uuid}</uuid>\
             <usage type='ceph'><name>client.{user} secret</name></usage></secret>"
        )
    }
}

/// The bytes of a key. A key says itself how long it is, so a part of one is noticed: a type (2
/// bytes), when it was made (8), a length (2, little endian) and as many bytes.
fn parse_key(text: &str) -> Option<Key> {
    // Kubernetes writes bytes as base64, too.
    let ByteString(bytes) = serde_json::from_value(text.into()).ok()?;
    let (head, secret) = bytes.split_first_chunk::<12>()?;
    let [.., low, high] = *head;
    let length = usize::from(u16::from_le_bytes([low, high]));
    (length > 0 && length == secret.len()).then_some(Key(bytes))
}

/// How giving it to libvirt went.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// libvirt has it.
    Installed,
    /// There is nothing to do: libvirt is away, or has no secrets.
    Nothing,
    /// It did not work.
    Failed(String),
}

/// Runs until it is cancelled.
pub async fn run(
    ctx: Context,
    config: CephConfig,
    access: SecretsAccess,
    metrics: CephMetrics,
    cancel: CancellationToken,
) {
    let Some(name) = config.secret_name.clone() else {
        return cancel.cancelled().await;
    };
    let (watching, secret) = watch_secret(&access, &ctx.namespace, &name);
    let keeping = keep(&ctx, &name, config.uuid, secret, &metrics);
    tokio::select! {
        ((), ()) = async { tokio::join!(watching, keeping) } => {}
        () = cancel.cancelled() => {}
    }
}

async fn keep(
    ctx: &Context,
    name: &str,
    uuid: Option<Uuid>,
    mut secret: watch::Receiver<Observed<Secret>>,
    metrics: &CephMetrics,
) {
    let mut libvirt = ctx.libvirt.clone();
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    let mut installed: Option<Credentials> = None;
    let mut said: Option<String> = None;
    loop {
        let connection = libvirt.borrow_and_update().clone();
        let seen = secret.borrow_and_update().clone();
        let wanted = credentials(&seen, uuid)
            .map_err(|why| format!("Secret {}/{name} {why}", ctx.namespace));
        let outcome = match (&wanted, &connection) {
            (Err(why), _) => Outcome::Failed(why.clone()),
            (Ok(_), None) => Outcome::Nothing,
            (Ok(wanted), Some(connection)) => install(connection, wanted).await,
        };
        metrics
            .installed
            .set(i64::from(outcome == Outcome::Installed));
        let missing = match &outcome {
            Outcome::Installed => {
                metrics.installs.inc();
                None
            }
            Outcome::Nothing => None,
            Outcome::Failed(why) => {
                metrics.failures.inc();
                Some(why.clone())
            }
        };
        // Only what is new is told: a key that was set again is not.
        if let Some(why) = missing.clone().filter(|why| said.as_ref() != Some(why)) {
            record(ctx, Severity::Warning, "CephSecretFailed", why);
        }
        if outcome == Outcome::Installed {
            let new = wanted.ok();
            if new != installed || said.is_some() {
                let text = new.as_ref().map_or_else(String::new, |new| {
                    format!(
                        "libvirt has the key of client.{} as secret {}",
                        new.user, new.uuid
                    )
                });
                record(ctx, Severity::Normal, "CephSecretInstalled", text);
            }
            installed = new;
        }
        ctx.health.set_missing(MISSING, missing.clone());
        said = missing;
        let wait = if said.is_some() {
            backoff.next_wait()
        } else {
            backoff.reset();
            RESYNC
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            Ok(()) = secret.changed() => {}
            Ok(()) = libvirt.changed() => {}
        }
    }
}

fn credentials(secret: &Observed<Secret>, uuid: Option<Uuid>) -> Result<Credentials, String> {
    match secret {
        Observed::Unknown(why) => Err(format!("cannot be read: {why}")),
        Observed::Invalid(why) => Err(format!("cannot be understood: {why}")),
        Observed::Absent => Err("does not exist".to_owned()),
        Observed::Present(secret) => Credentials::from_data(secret.data.as_ref(), uuid)
            .map_err(|refused| format!("cannot be used: {refused}")),
    }
}

async fn install(connection: &Connection, wanted: &Credentials) -> Outcome {
    match give(connection, wanted).await.supported() {
        Ok(Some(())) => Outcome::Installed,
        Ok(None) => Outcome::Nothing,
        // The connection's own task says it, and a new one comes.
        Err(error) if error.is_closed() => Outcome::Nothing,
        Err(error) => Outcome::Failed(format!(
            "failed to give the key of client.{} to libvirt: {}",
            wanted.user,
            chain(&error)
        )),
    }
}

async fn give(connection: &Connection, wanted: &Credentials) -> Result<(), Error> {
    let secret = connection.secret_define_xml(&wanted.xml()).await?;
    connection.secret_set_value(&secret, &wanted.key.0).await
}

fn record(ctx: &Context, severity: Severity, reason: &'static str, text: String) {
    let note = Note {
        severity,
        reason,
        action: "InstallCephSecret",
        text,
    };
    ctx.recorder.report(&ctx.hypervisor_reference(), note);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ceph-authtool --gen-print-key` prints one.
    const SAMPLE: &str = "AQBSdFhmAAAAABAAMTIzNDU2Nzg5MDEyMzQ1Ng==";
    const ID: &str = "457eb676-33da-42ec-9a8c-9293d545c337";

    fn data(fields: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        let field = |(name, text): &(&str, &str)| {
            ((*name).to_owned(), ByteString(text.as_bytes().to_vec()))
        };
        fields.iter().map(field).collect()
    }

    #[test]
    fn a_secret_says_who_with_what_and_under_which_name() {
        let full = data(&[
            (USER, "client.nova\n"),
            (KEY, &format!(" {SAMPLE}\n")),
            (UUID, ID),
        ]);
        let credentials = Credentials::from_data(Some(&full), None).unwrap();
        assert_eq!(credentials.user, "nova");
        assert_eq!(credentials.uuid.to_string(), ID);
        assert_eq!(credentials.key.0.len(), 28);
        assert_eq!(
            credentials.xml(),
            "<secret ephemeral='yes' private='yes'><uuid>457eb676-33da-42ec-9a8c-9293d545c337</uuid>\
             <usage type='ceph'><name>client.nova secret</name></usage></secret>"
        );
        let short = data(&[(USER, "nova"), (KEY, SAMPLE)]);
        let flag = ID.parse().ok();
        assert_eq!(
            Credentials::from_data(Some(&short), flag).unwrap(),
            credentials
        );
    }

    #[test]
    fn a_bad_secret_is_refused_by_the_name_of_its_key() {
        let truncated = &SAMPLE[..36];
        for (fields, wanted) in [
            (vec![], Refused::Missing(USER)),
            (vec![(USER, "nova")], Refused::Missing(KEY)),
            (vec![(USER, "nova"), (KEY, "  ")], Refused::Missing(KEY)),
            (
                vec![(USER, "nova'/>"), (KEY, SAMPLE), (UUID, ID)],
                Refused::User,
            ),
            (
                vec![(USER, "nova"), (KEY, "not base64"), (UUID, ID)],
                Refused::Key,
            ),
            (
                vec![(USER, "nova"), (KEY, truncated), (UUID, ID)],
                Refused::Key,
            ),
            (
                vec![(USER, "nova"), (KEY, "AAAA"), (UUID, ID)],
                Refused::Key,
            ),
            (
                vec![(USER, "nova"), (KEY, SAMPLE), (UUID, "seven")],
                Refused::Uuid,
            ),
            (vec![(USER, "nova"), (KEY, SAMPLE)], Refused::NoUuid),
        ] {
            let refused = Credentials::from_data(Some(&data(&fields)), None).unwrap_err();
            assert_eq!(refused, wanted, "{fields:?}");
        }
    }

    #[test]
    fn w82_a_key_is_never_shown() {
        let full = data(&[(USER, "nova"), (KEY, SAMPLE), (UUID, ID)]);
        let credentials = Credentials::from_data(Some(&full), None).unwrap();
        let shown = format!("{credentials:?} {}", credentials.xml());
        assert!(shown.contains("Key(..)"));
        assert!(
            !shown.contains("AQBS") && !shown.contains("82, 116, 88"),
            "{shown}"
        );
    }
}
