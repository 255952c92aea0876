//! Keeps the installed certificate as the Secret has it, and says how that stands.
//!
//! Each look goes from the beginning to the end: what is asked for, what the Secret has, what is in
//! the files, what libvirtd serves. Until a look has ended the condition says what it said: a
//! rotation that goes well is one write. The condition becomes False by a timer when the
//! certificate expires.

use std::path::PathBuf;
use std::time::Duration;

use cobalt_api::conditions::{Reason, Status};
use cobalt_api::hypervisor::Hypervisor;
use cobalt_runtime::{Backoff, Note, Observed, Severity, chain};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use tokio::sync::watch;

use super::material::{Facts, Host, Identity, Material, Refused};
use super::{CONDITION, SecretLabels, TlsConfig, TlsMetrics, files, secret_name, verify};
use crate::context::{Context, Statement};

/// How often all of it is looked at again: files and certificates may be changed by others.
const RESYNC: Duration = Duration::from_secs(600);
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long the Secret may be unknown before the condition says so: a restart of the agent or of
/// the API server is not worth a word.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the next look depends on. A change of anything else is no reason to look.
#[derive(Debug, Clone)]
struct Inputs {
    /// What the Hypervisor says; `None`: it is not known.
    wanted: Option<bool>,
    secret: Observed<Secret>,
    /// Why no certificate is asked for.
    trouble: Option<String>,
}

/// The installation and what it remembers.
pub(super) struct Installer<'a> {
    ctx: &'a Context,
    config: &'a TlsConfig,
    pki: PathBuf,
    metrics: &'a TlsMetrics,
    /// What libvirtd was told to load since it was connected last.
    told: Option<Material>,
    /// What libvirtd has refused since it was connected last, and what was said then.
    refused: Option<(Material, Statement)>,
    /// What was written and not seen in use yet.
    unproven: bool,
    /// Which certificate, by its number, people were warned about.
    warned: Option<String>,
    /// What was said last.
    said: Option<Statement>,
}

/// How a look ended, and when the next one is due.
struct Look {
    statement: Option<Statement>,
    next: Next,
}

/// When to look again if nothing happens.
enum Next {
    /// Soon: it did not work.
    Retry,
    /// When something happens, or at this time.
    At(Option<Timestamp>),
}

impl<'a> Installer<'a> {
    pub(super) fn new(
        ctx: &'a Context,
        config: &'a TlsConfig,
        pki: PathBuf,
        metrics: &'a TlsMetrics,
    ) -> Self {
        Self {
            ctx,
            config,
            pki,
            metrics,
            told: None,
            refused: None,
            unproven: false,
            warned: None,
            said: None,
        }
    }

    pub(super) async fn run(
        mut self,
        mut secret: watch::Receiver<Observed<Secret>>,
        mut trouble: watch::Receiver<Option<String>>,
    ) {
        let mut hypervisor = self.ctx.hypervisor.clone();
        let mut libvirt = self.ctx.libvirt.clone();
        let pulse = self.ctx.health.pulse("tls", RESYNC * 2);
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut unknown_since = Some(tokio::time::Instant::now());
        loop {
            pulse.beat();
            let inputs = Inputs {
                wanted: wanted(&hypervisor.borrow_and_update()),
                secret: secret.borrow_and_update().clone(),
                trouble: trouble.borrow_and_update().clone(),
            };
            if !matches!(inputs.secret, Observed::Unknown(_)) {
                unknown_since = None;
            }
            let patient = unknown_since.is_some_and(|since| since.elapsed() < PATIENCE);
            let missing = match &inputs.secret {
                Observed::Unknown(why) if !patient => Some(why.clone()),
                _ => None,
            };
            self.ctx.health.set_missing("tls", missing);
            let look = self.look(&inputs, patient).await;
            let wait = match look.next {
                Next::Retry => backoff.next_wait(),
                Next::At(at) => {
                    backoff.reset();
                    at.map_or(RESYNC, until).min(RESYNC)
                }
            };
            self.say(look.statement);
            let mut wait = std::pin::pin!(tokio::time::sleep(wait));
            // Why we look again: something has changed that matters.
            loop {
                tokio::select! {
                    () = &mut wait => {
                        self.refused = None;
                        break;
                    }
                    Ok(()) = secret.changed() => break,
                    Ok(()) = trouble.changed() => break,
                    Ok(()) = libvirt.changed() => {
                        // Another libvirtd, perhaps: what the one before said does not count.
                        (self.told, self.refused) = (None, None);
                        if libvirt.borrow_and_update().is_some() {
                            break;
                        }
                    }
                    Ok(()) = hypervisor.changed() => {
                        if wanted(&hypervisor.borrow_and_update()) != inputs.wanted {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Looks at everything once and does what is to be done.
    async fn look(&mut self, inputs: &Inputs, patient: bool) -> Look {
        let name = format!("{}/{}", self.ctx.namespace, secret_name(&self.ctx.node));
        let nothing = |statement| Look {
            statement,
            next: Next::At(None),
        };
        match inputs.wanted {
            Some(true) => {}
            Some(false) => {
                self.ctx.conditions.remove(CONDITION);
                self.metrics.expiry.clear();
                self.said = None;
                return nothing(None);
            }
            // Nobody has said anything, so nothing is done.
            None => return nothing(None),
        }
        let secret = match &inputs.secret {
            Observed::Unknown(_) if patient => {
                return Look {
                    statement: None,
                    next: Next::Retry,
                };
            }
            Observed::Unknown(why) => {
                return nothing(Some(waiting(&name, &format!("cannot be read: {why}"))));
            }
            Observed::Invalid(why) => {
                return nothing(Some(waiting(
                    &name,
                    &format!("cannot be understood: {why}"),
                )));
            }
            Observed::Absent => {
                let why = match &inputs.trouble {
                    Some(trouble) => format!("does not exist; {trouble}"),
                    None => "does not exist".to_owned(),
                };
                return nothing(Some(waiting(&name, &why)));
            }
            Observed::Present(secret) => secret,
        };
        let now = Timestamp::now();
        let host = Host {
            node: self.ctx.node.to_string(),
            address: self.config.host_ip,
        };
        let material = Material::from_data(secret.data.as_ref());
        let checked = material.and_then(|material| {
            let identity = material.check(&host, now)?;
            Ok((material, identity))
        });
        match checked {
            Ok((material, identity)) => {
                self.note_expiry(&identity.facts, now);
                self.install(&material, &identity, now).await
            }
            Err(refused) => self.refuse(&name, &refused),
        }
    }

    /// A Secret that cannot be used: the files stay as they are.
    fn refuse(&mut self, name: &str, refused: &Refused) -> Look {
        let reason = if refused.is_expiry() {
            Reason::Expired
        } else {
            Reason::FailedToUpdateTlsCertificate
        };
        let next = match refused {
            Refused::NotYet(at) => Some(*at),
            Refused::Expired(at) => {
                self.set_expiry(*at);
                None
            }
            _ => None,
        };
        Look {
            statement: Some(no(
                reason,
                format!("Secret {name}: {refused}; the installed files stay"),
            )),
            next: Next::At(next),
        }
    }

    /// Puts a good certificate in place and looks whether it is in use.
    async fn install(&mut self, material: &Material, identity: &Identity, now: Timestamp) -> Look {
        if let Some((refused, statement)) = &self.refused
            && refused == material
        {
            return Look {
                statement: Some(statement.clone()),
                next: Next::At(None),
            };
        }
        let before = match self.write(material).await {
            Ok(before) => before,
            Err(why) => {
                return Look {
                    statement: Some(no(Reason::FailedToUpdateTlsCertificate, why)),
                    next: Next::Retry,
                };
            }
        };
        let told = if self.told.as_ref() == Some(material) {
            None
        } else {
            Some(verify::tell(&self.config.admin_socket).await)
        };
        if told == Some(verify::Told::Reloaded) {
            self.told = Some(material.clone());
        }
        let address = self.config.tls_address;
        let seen = verify::look(address, &self.ctx.node, identity).await;
        let mut verdict = verify::verdict(&identity.facts, told.as_ref(), &seen, address);
        if let Some(before) = before.filter(|_| verdict.take_back) {
            // libvirtd would not start with what it refuses.
            let back = match self.write(&before).await {
                Ok(_) => "; the files before are back".to_owned(),
                Err(why) => format!("; the files before cannot be put back: {why}"),
            };
            verdict.statement.message.push_str(&back);
            self.refused = Some((material.clone(), verdict.statement.clone()));
            self.told = None;
        }
        let next = if verdict.statement.status == Status::True {
            let warn = identity.facts.warn_at();
            Next::At(Some(if warn > now {
                warn
            } else {
                identity.facts.not_after
            }))
        } else if self.refused.is_some() {
            Next::At(None)
        } else {
            Next::Retry
        };
        Look {
            statement: Some(verdict.statement),
            next,
        }
    }

    /// Writes the files; what was there before, if they were others.
    async fn write(&mut self, material: &Material) -> Result<Option<Material>, String> {
        let (root, content, group) = (self.pki.clone(), material.clone(), self.config.qemu_group);
        let write = tokio::task::spawn_blocking(move || files::install(&root, &content, group));
        let installed = match write.await {
            Ok(Ok(installed)) => installed,
            Ok(Err(error)) => return Err(chain(&error)),
            Err(error) => return Err(chain(&error)),
        };
        if installed.changed {
            tracing::info!(folder = %self.pki.display(), "wrote TLS material");
            self.metrics.installs.inc();
            self.unproven = true;
            self.told = None;
        }
        Ok(installed
            .before
            .filter(|before| installed.changed && before != material))
    }
}

impl Installer<'_> {
    /// Metric, and an Event when a fifth of the life is left: a renewal has failed by then.
    fn note_expiry(&mut self, facts: &Facts, now: Timestamp) {
        self.set_expiry(facts.not_after);
        let warned = self
            .warned
            .as_ref()
            .is_some_and(|serial| *serial == facts.serial);
        if now >= facts.warn_at() && !warned {
            self.warned = Some(facts.serial.clone());
            let text = format!("{}: it should have been renewed", verify::describe(facts));
            self.record(Severity::Warning, "TLSCertificateExpiresSoon", text);
        }
    }

    fn set_expiry(&self, at: Timestamp) {
        let labels = SecretLabels {
            secret: secret_name(&self.ctx.node),
        };
        self.metrics
            .expiry
            .get_or_create(&labels)
            .set(at.as_second());
    }

    /// Says what holds, and tells people where it is new.
    fn say(&mut self, statement: Option<Statement>) {
        let Some(statement) = statement else { return };
        let good = statement.status == Status::True;
        let same = self.said.as_ref() == Some(&statement);
        if !good && statement.reason != Reason::Installing {
            self.metrics.failures.inc();
        }
        let was_bad = self
            .said
            .as_ref()
            .is_some_and(|said| said.reason != Reason::Ready);
        if good && (self.unproven || was_bad) {
            self.unproven = false;
            self.record(
                Severity::Normal,
                "TLSCertificateInstalled",
                statement.message.clone(),
            );
        } else if !good && !same && statement.reason != Reason::Installing {
            self.record(
                Severity::Warning,
                event_reason(statement.reason),
                statement.message.clone(),
            );
        }
        self.ctx.conditions.set(CONDITION, statement.clone());
        self.said = Some(statement);
    }

    fn record(&self, severity: Severity, reason: &'static str, text: String) {
        let note = Note {
            severity,
            reason,
            action: "InstallCertificate",
            text,
        };
        self.ctx
            .recorder
            .report(&self.ctx.hypervisor_reference(), note);
    }
}

fn event_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Expired => "TLSCertificateExpired",
        Reason::FailedToUpdateTlsCertificate => "TLSCertificateRefused",
        _ => "TLSCertificateNotInUse",
    }
}

fn no(reason: Reason, message: String) -> Statement {
    Statement {
        status: Status::False,
        reason,
        message,
    }
}

fn waiting(secret: &str, why: &str) -> Statement {
    no(
        Reason::Installing,
        format!("Secret {secret} {why}; what is installed stays"),
    )
}

/// What the Hypervisor says; `None`: it is not known.
fn wanted(hypervisor: &Observed<Hypervisor>) -> Option<bool> {
    hypervisor
        .object()
        .map(|object| object.spec.install_certificate())
}

/// How long until then, by the wall clock: the clock may be set, so nobody sleeps for long.
fn until(then: Timestamp) -> Duration {
    let left = then
        .as_second()
        .saturating_sub(Timestamp::now().as_second());
    // One more second, so that it has passed.
    Duration::from_secs(u64::try_from(left).unwrap_or(0).saturating_add(1))
}
