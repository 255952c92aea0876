//! Holds logind's delay lock, hears of shutdowns and carries out what `shutdown` decides.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::conditions::{HypervisorCondition, Status};
use cobalt_api::eviction::Eviction;
use cobalt_runtime::{Backoff, Note, Observed, Severity, chain, watch_object};
use kube::{Api, ResourceExt};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bus::{Bus, BusError, LOGIND, Signal};
use super::connection::Link;
use super::drain;
use super::logind::{self, DelayConfig};
use super::metrics::HostMetrics;
use super::shutdown::{self, Action, Drain, Going, Lock, View};
use crate::context::{Context, Statement};

const WHAT: &str = "shutdown:sleep";
const WHO: &str = "cobalt-node-agent";
const WHY: &str = "instances have to leave the host before it goes down";

/// Longer than any wait for an event can be trusted: logind's limit may be changed without a signal.
const AGAIN: Duration = Duration::from_secs(600);

/// Runs until it is cancelled. The lock ends with it.
pub async fn run(
    ctx: Context,
    link: watch::Receiver<Link>,
    wanted_delay: Option<DelayConfig>,
    delay: watch::Sender<Option<Duration>>,
    metrics: HostMetrics,
    cancel: CancellationToken,
) {
    let mut inhibitor = Inhibitor {
        hypervisor: ctx.hypervisor.clone(),
        domains: ctx.domains.clone(),
        ctx,
        link,
        metrics,
        signals: None,
        lock: None,
        lock_is_old: false,
        refused: None,
        going: None,
        released: None,
        eviction: None,
        failing: None,
        leftovers: None,
        delay,
        wanted_delay,
        no_delay: None,
        backoff: Backoff::new(Duration::from_millis(250), Duration::from_secs(5)),
    };
    inhibitor.attach().await;
    loop {
        let wait = tokio::select! {
            wait = inhibitor.turn() => wait,
            () = cancel.cancelled() => return,
        };
        let wake = tokio::select! {
            wake = inhibitor.next() => wake,
            () = tokio::time::sleep(wait) => Wake::Time,
            () = cancel.cancelled() => return,
        };
        tokio::select! {
            alive = inhibitor.learn(wake) => if !alive { return },
            () = cancel.cancelled() => return,
        }
    }
}

struct Inhibitor {
    ctx: Context,
    link: watch::Receiver<Link>,
    hypervisor: watch::Receiver<Observed<cobalt_api::hypervisor::Hypervisor>>,
    domains: watch::Receiver<Arc<crate::context::Domains>>,
    metrics: HostMetrics,
    signals: Option<broadcast::Receiver<Arc<Signal>>>,
    lock: Option<OwnedFd>,
    lock_is_old: bool,
    refused: Option<String>,
    going: Option<Going>,
    released: Option<String>,
    eviction: Option<Watched>,
    failing: Option<String>,
    /// Evictions of earlier shutdowns that are to be cancelled; `None` until somebody has looked.
    leftovers: Option<Vec<String>>,
    /// How long logind lets a shutdown wait.
    delay: watch::Sender<Option<Duration>>,
    wanted_delay: Option<DelayConfig>,
    /// Why logind's limit could not be raised.
    no_delay: Option<String>,
    backoff: Backoff,
}

/// Why there is something to think about.
enum Wake {
    /// Something that is looked at anyway is new.
    Look,
    /// Nothing has happened for a while, or it is time to try again.
    Time,
    /// What logind says has to be read again.
    Attach,
    /// The bus has told something.
    Signal(Arc<Signal>),
    /// The watch of the Eviction is over.
    EvictionLost,
    /// The agent ends.
    Ended,
}

/// An Eviction that is waited for; the watch ends with it.
struct Watched {
    seen: watch::Receiver<Observed<Eviction>>,
    /// As it was when we made or joined it, until the watch shows more.
    first: Eviction,
    _watch: JoinSet<()>,
}

impl Watched {
    fn drain(&self) -> Drain {
        match &*self.seen.borrow() {
            Observed::Present(eviction) => shutdown::drain(eviction),
            Observed::Absent => Drain::Ended {
                name: self.first.name_any(),
                outcome: "it was deleted".to_owned(),
            },
            Observed::Unknown(_) | Observed::Invalid(_) => shutdown::drain(&self.first),
        }
    }
}

impl Inhibitor {
    fn view(&self) -> View {
        let wanted = self.hypervisor.borrow().object().map(|found| {
            // As the schema has it.
            found.spec.evacuate_on_reboot.unwrap_or(true)
        });
        let lock = match (&self.lock, self.lock_is_old, &self.refused) {
            (Some(_), false, _) => Lock::Held,
            (Some(_), true, _) => Lock::Old,
            (None, _, Some(why)) => Lock::Refused(why.clone()),
            (None, _, None) => Lock::Free,
        };
        let away = match &*self.link.borrow() {
            Link::Up(_) => None,
            Link::Untried => Some("logind was not reached yet".to_owned()),
            Link::Down { why, .. } => Some(why.clone()),
        };
        let drain = match (&self.eviction, &self.failing) {
            (Some(eviction), _) => eviction.drain(),
            (None, Some(why)) => Drain::Failing(why.clone()),
            (None, None) => Drain::None,
        };
        View {
            wanted,
            away,
            lock,
            going: self.going,
            released: self.released.clone(),
            active: self.active(),
            drain,
            delay: *self.delay.borrow(),
            wanted_delay: self
                .wanted_delay
                .as_ref()
                .map(|config| (config.delay, self.no_delay.clone())),
            leftovers: self.leftovers.clone(),
        }
    }

    /// Active instances. Before libvirt was reached, those of the last report.
    fn active(&self) -> usize {
        let domains = self.domains.borrow().clone();
        let connected = self
            .ctx
            .conditions
            .says(HypervisorCondition::LibVirtConnection, Status::True);
        if !domains.is_empty() || connected {
            return domains.values().filter(|facts| facts.active).count();
        }
        let hypervisor = self.hypervisor.borrow();
        let status = hypervisor.object().and_then(|found| found.status.as_ref());
        status.map_or(0, |status| {
            status.instances.iter().filter(|one| one.active).count()
        })
    }

    /// Does what is to be done until nothing is that has not just failed. Returns how long to wait
    /// at most.
    async fn turn(&mut self) -> Duration {
        let mut failed = Vec::new();
        loop {
            let (actions, statement) = shutdown::decide(&self.view());
            self.metrics
                .shutdown_inhibited
                .set(i64::from(self.lock.is_some()));
            let next = actions.into_iter().find(|action| !failed.contains(action));
            let Some(action) = next else {
                self.say(statement);
                if failed.is_empty() {
                    self.backoff.reset();
                    return AGAIN;
                }
                return self.backoff.next_wait();
            };
            if !self.act(&action).await {
                failed.push(action);
            }
        }
    }

    /// Returns whether it worked.
    async fn act(&mut self, action: &Action) -> bool {
        match action {
            Action::Take => self.take().await,
            Action::Release(why) => {
                self.release(why.clone());
                true
            }
            Action::Evict => self.evict().await,
            Action::Look => self.look().await,
            Action::Cancel(name) => self.call_off(name).await,
            Action::SetDelay(delay) => self.set_delay(*delay).await,
        }
    }

    /// Says what holds, once it is known: a new process has nothing to say before it has seen logind
    /// and the Hypervisor, and what the one before it said may still be right.
    fn say(&self, statement: Statement) {
        let unseen = matches!(*self.hypervisor.borrow(), Observed::Unknown(_));
        let untried = matches!(*self.link.borrow(), Link::Untried);
        if !unseen && !untried {
            self.ctx
                .conditions
                .set(HypervisorCondition::ShutdownInhibited, statement);
        }
    }

    /// Waits until something has changed.
    async fn next(&mut self) -> Wake {
        let signal = async {
            match &mut self.signals {
                Some(signals) => signals.recv().await.ok(),
                None => std::future::pending().await,
            }
        };
        let eviction = async {
            match &mut self.eviction {
                Some(eviction) => eviction.seen.changed().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        let ended = |changed: Result<(), watch::error::RecvError>, wake| match changed {
            Ok(()) => wake,
            Err(_) => Wake::Ended,
        };
        tokio::select! {
            changed = self.link.changed() => ended(changed, Wake::Attach),
            signal = signal => match signal {
                Some(signal) => Wake::Signal(signal),
                // Some were lost.
                None => Wake::Attach,
            },
            watched = eviction => if watched { Wake::Look } else { Wake::EvictionLost },
            changed = self.hypervisor.changed() => ended(changed, Wake::Look),
            changed = self.domains.changed() => ended(changed, Wake::Look),
        }
    }

    /// Takes in what has changed. `false` when nothing can any more.
    async fn learn(&mut self, wake: Wake) -> bool {
        match wake {
            Wake::Look => {}
            Wake::Time => self.read_delay().await,
            Wake::Attach => self.attach().await,
            Wake::EvictionLost => self.eviction = None,
            Wake::Ended => return false,
            Wake::Signal(signal) => match &*signal {
                Signal::Prepare { begins, sleep } => self.prepare(*begins, *sleep).await,
                Signal::Owner {
                    service,
                    present: true,
                } if *service == LOGIND.service => self.attach().await,
                _ => {}
            },
        }
        true
    }

    fn bus(&self) -> Option<Bus> {
        self.link.borrow().bus().cloned()
    }

    /// A new connection, or a new logind: what was known may be wrong.
    async fn attach(&mut self) {
        self.lock_is_old = self.lock.is_some();
        self.link.borrow_and_update();
        let Some(bus) = self.bus() else {
            self.signals = None;
            return;
        };
        // Signals first: what begins while we read is heard.
        self.signals = Some(bus.signals());
        let going = match preparing(&bus).await {
            Ok(going) => going,
            Err(error) => {
                tracing::warn!(error = chain(&error), "failed to ask logind for shutdowns");
                self.going
            }
        };
        if going != self.going {
            match going.or(self.going) {
                Some(known) => self.prepare(going.is_some(), known == Going::Asleep).await,
                None => self.going = None,
            }
        }
        self.read_delay().await;
    }

    async fn prepare(&mut self, begins: bool, sleep: bool) {
        let going = if sleep { Going::Asleep } else { Going::Down };
        let word = if sleep { "sleep" } else { "shut down" };
        self.released = None;
        self.failing = None;
        // Whatever was asked for until now is to be taken back when no shutdown is under way.
        self.leftovers = None;
        if begins {
            self.going = Some(going);
            self.read_delay().await;
            let active = self.active();
            let text = format!("the host is about to {word}; active instances: {active}");
            self.report(Severity::Normal, "ShutdownRequested", "Wait", text);
        } else {
            self.going = None;
            self.eviction = None;
            let text = format!("the host does not {word}");
            self.report(Severity::Normal, "ShutdownCalledOff", "Resume", text);
        }
    }

    async fn read_delay(&mut self) {
        let Some(bus) = self.bus() else {
            return;
        };
        match bus.property::<u64>(LOGIND, "InhibitDelayMaxUSec").await {
            Ok(microseconds) => {
                let delay = Some(Duration::from_micros(microseconds));
                self.delay.send_if_modified(|known| {
                    let new = *known != delay;
                    *known = delay;
                    new
                });
            }
            Err(error) => tracing::debug!(error = chain(&error), "logind does not tell its limit"),
        }
    }

    async fn take(&mut self) -> bool {
        let Some(bus) = self.bus() else {
            return false;
        };
        let body = (WHAT, WHO, WHY, "delay");
        match bus.ask::<_, zbus::OwnedFd>(LOGIND, "Inhibit", &body).await {
            Ok(lock) => {
                // The old one goes only now, so that there is no moment without a lock.
                self.lock = Some(lock.into());
                self.lock_is_old = false;
                self.refused = None;
                tracing::info!("shutdowns wait for the instances of this host");
                true
            }
            Err(error) => {
                let mut why = chain(&error);
                if error.is_refusal() {
                    why.push_str("; the agent needs user id 0, or polkit's leave on the host");
                }
                if self.refused.as_ref() != Some(&why) {
                    tracing::warn!(
                        error = why,
                        "failed to take logind's lock; it is tried again"
                    );
                }
                self.refused = Some(why);
                false
            }
        }
    }

    fn release(&mut self, why: String) {
        self.lock = None;
        self.lock_is_old = false;
        self.metrics.shutdown_inhibited.set(0);
        if self.going.is_some() {
            let left = self.active();
            let severity = if left == 0 {
                Severity::Normal
            } else {
                Severity::Warning
            };
            let text = format!("the shutdown goes on: {why}");
            self.report(severity, "ShutdownReleased", "Release", text);
            self.released = Some(why);
        } else {
            tracing::info!(why, "shutdowns do not wait any more");
        }
    }

    async fn evict(&mut self) -> bool {
        let delay = *self.delay.borrow();
        let asked = drain::ensure(&self.ctx, delay).await;
        match asked {
            Ok((eviction, made)) => {
                let name = eviction.name_any();
                let (reason, text) = if made {
                    (
                        "EvictionCreated",
                        format!("Eviction \"{name}\" empties the host"),
                    )
                } else {
                    (
                        "EvictionJoined",
                        format!("Eviction \"{name}\" empties the host already"),
                    )
                };
                self.report(Severity::Normal, reason, "Evict", text);
                self.failing = None;
                self.eviction = Some(self.follow(eviction));
                true
            }
            Err(why) => {
                if self.failing.is_none() {
                    let text = format!("no Eviction yet, it is tried again: {why}");
                    self.report(Severity::Warning, "EvictionFailed", "Evict", text);
                }
                self.failing = Some(why);
                false
            }
        }
    }

    fn follow(&self, first: Eviction) -> Watched {
        let (sender, seen) = watch::channel(Observed::Unknown("not asked yet".to_owned()));
        let api = Api::all(self.ctx.client.clone());
        let name = first.name_any();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { watch_object(api, &name, sender).await });
        Watched {
            seen,
            first,
            _watch: tasks,
        }
    }

    /// Looks for Evictions that were made because of a shutdown, unless one is under way.
    async fn look(&mut self) -> bool {
        let Some(bus) = self.bus() else {
            return false;
        };
        // Whoever did not hear of a shutdown must not cancel the Eviction that it waits for.
        match preparing(&bus).await {
            Ok(None) => {}
            Ok(Some(going)) => {
                self.prepare(true, going == Going::Asleep).await;
                return true;
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "failed to ask logind for shutdowns");
                return false;
            }
        }
        match drain::leftovers(&self.ctx).await {
            Ok(names) => {
                self.leftovers = Some(names);
                true
            }
            Err(error) => {
                tracing::warn!(error, "failed to look for Evictions of earlier shutdowns");
                false
            }
        }
    }

    /// Makes logind let a shutdown wait for long enough.
    async fn set_delay(&mut self, delay: Duration) -> bool {
        let (Some(bus), Some(config)) = (self.bus(), self.wanted_delay.clone()) else {
            return false;
        };
        match logind::set_delay(&bus, &config).await {
            Ok(()) => self.read_delay().await,
            Err(why) => {
                if self.no_delay.as_ref() != Some(&why) {
                    tracing::warn!(error = why, "failed to raise how long logind waits");
                    let text = format!("a shutdown does not wait as long as it shall: {why}");
                    self.report(Severity::Warning, "ShutdownDelayNotSet", "Configure", text);
                }
                self.no_delay = Some(why);
                return false;
            }
        }
        self.no_delay = None;
        // logind may need a moment to read it.
        self.delay.borrow().is_some_and(|now| now >= delay)
    }

    async fn call_off(&mut self, name: &str) -> bool {
        match drain::cancel(&self.ctx, name).await {
            Ok(()) => {
                let text =
                    format!("Eviction \"{name}\" of a shutdown is cancelled: the host is up");
                self.report(Severity::Normal, "EvictionCancelled", "Cancel", text);
                if let Some(names) = &mut self.leftovers {
                    names.retain(|other| other != name);
                }
                true
            }
            Err(error) => {
                tracing::warn!(
                    eviction = name,
                    error,
                    "failed to cancel; it is tried again"
                );
                false
            }
        }
    }

    fn report(&self, severity: Severity, reason: &'static str, action: &'static str, text: String) {
        let note = Note {
            severity,
            reason,
            action,
            text,
        };
        self.ctx
            .recorder
            .report(&self.ctx.hypervisor_reference(), note);
    }
}

/// What the host is about to do, for one who comes late.
async fn preparing(bus: &Bus) -> Result<Option<Going>, BusError> {
    if bus.property::<bool>(LOGIND, "PreparingForShutdown").await? {
        return Ok(Some(Going::Down));
    }
    let sleeps: bool = bus.property(LOGIND, "PreparingForSleep").await?;
    Ok(sleeps.then_some(Going::Asleep))
}
