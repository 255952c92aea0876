//! The supervised connection to the system bus: connects, subscribes, tells the other parts, and
//! begins anew when it is lost, for ever (W69, W70).

use std::time::Duration;

use cobalt_api::conditions::{HypervisorCondition, Reason, Status};
use cobalt_runtime::{Backoff, chain, jitter};
use futures::StreamExt;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use zbus::{Connection, MessageStream};

use super::bus::{self, Bus, BusError, SYSTEMD, Signal};
use super::metrics::HostMetrics;
use super::services;
use crate::context::{Conditions, Statement};

/// A local socket is cheap to try.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// More than any burst of a host's units; who lags behind reads the state again.
const QUEUE: usize = 256;

/// What is known of the bus.
#[derive(Debug, Clone)]
pub enum Link {
    /// The first try is under way.
    Untried,
    /// It is connected.
    Up(Bus),
    /// It is not.
    Down {
        /// `ConnectFailed` or `Disconnected`.
        reason: Reason,
        /// Why.
        why: String,
    },
}

impl Link {
    /// The bus, while it is connected.
    #[must_use]
    pub fn bus(&self) -> Option<&Bus> {
        match self {
            Self::Up(bus) => Some(bus),
            Self::Untried | Self::Down { .. } => None,
        }
    }
}

/// How the bus is reached.
#[derive(Debug, Clone)]
pub struct BusConfig {
    /// Where it is, as D-Bus writes it.
    pub address: String,
    /// How long one call may take.
    pub deadline: Duration,
    /// How often a silent bus is asked for a sign of life.
    pub ping: Duration,
}

/// Runs until it is cancelled.
pub async fn run(
    config: BusConfig,
    link: watch::Sender<Link>,
    conditions: Conditions,
    metrics: HostMetrics,
    cancel: CancellationToken,
) {
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let session = session(&config, &link, &conditions, &metrics, &mut backoff);
        let why = tokio::select! {
            why = session => why,
            () = cancel.cancelled() => return,
        };
        metrics.bus_connected.set(0);
        let (reason, why) = match link.borrow().bus() {
            Some(_) => (
                Reason::Disconnected,
                format!("the connection to {} was lost: {why}", config.address),
            ),
            None => (Reason::ConnectFailed, format!("{}: {why}", config.address)),
        };
        tracing::debug!(why, "the system bus is away");
        // A lost bus that cannot be reached again was still lost: that reason stays.
        let was_lost = matches!(
            &*link.borrow(),
            Link::Down {
                reason: Reason::Disconnected,
                ..
            }
        );
        if !was_lost {
            let message = why.clone();
            conditions.set(
                HypervisorCondition::SystemdConnection,
                Statement {
                    status: Status::False,
                    reason,
                    message,
                },
            );
            link.send_replace(Link::Down { reason, why });
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = cancel.cancelled() => return,
        }
    }
}

/// One connection, from its beginning to its end. Returns why it ended.
async fn session(
    config: &BusConfig,
    link: &watch::Sender<Link>,
    conditions: &Conditions,
    metrics: &HostMetrics,
    backoff: &mut Backoff,
) -> String {
    let connection = match connect(config).await {
        Ok(connection) => connection,
        Err(why) => return why,
    };
    let messages = MessageStream::from(&connection);
    let (signals, _) = broadcast::channel(QUEUE);
    let bus = Bus::new(connection, signals, config.deadline);
    // Messages are read from the first one on: a full queue would hold up the answers, too.
    tokio::select! {
        why = pump(messages, &bus) => why,
        error = hold(config, &bus, link, conditions, metrics, backoff) => chain(&error),
    }
}

async fn connect(config: &BusConfig) -> Result<Connection, String> {
    let connecting = zbus::connection::Builder::address(config.address.as_str()).build();
    match tokio::time::timeout(config.deadline, connecting).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer within {} s", config.deadline.as_secs())),
    }
}

/// Passes signals on until the connection ends.
async fn pump(mut messages: MessageStream, bus: &Bus) -> String {
    let mut why = None;
    while let Some(message) = messages.next().await {
        match message {
            Ok(message) => {
                if let Some(signal) = bus::decode(&message) {
                    bus.tell(signal);
                }
            }
            Err(error) => why = Some(chain(&error)),
        }
    }
    why.unwrap_or_else(|| "the bus has closed it".to_owned())
}

/// Subscribes, tells the others, and asks now and then whether the bus still answers: one that
/// hangs does not close its connections.
async fn hold(
    config: &BusConfig,
    bus: &Bus,
    link: &watch::Sender<Link>,
    conditions: &Conditions,
    metrics: &HostMetrics,
    backoff: &mut Backoff,
) -> BusError {
    let version = match subscribe(bus).await {
        Ok(version) => version,
        Err(error) => return error,
    };
    backoff.reset();
    metrics.bus_connects.inc();
    metrics.bus_connected.set(1);
    tracing::info!(
        address = config.address,
        systemd = version,
        "connected to systemd"
    );
    conditions.set(
        HypervisorCondition::SystemdConnection,
        Statement {
            status: Status::True,
            reason: Reason::Connected,
            message: format!("connected to {}, systemd {version}", config.address),
        },
    );
    let mut signals = bus.signals();
    link.send_replace(Link::Up(bus.clone()));
    loop {
        let alive = tokio::select! {
            () = tokio::time::sleep(jitter(config.ping)) => ping(bus).await,
            signal = signals.recv() => match signal.as_deref() {
                // A new systemd does not know who had subscribed to the old one.
                Ok(Signal::Owner { service, present: true }) if *service == SYSTEMD.service => {
                    let subscribed = bus.call(SYSTEMD, "Subscribe", &()).await;
                    bus.tell(Signal::UnitsReloaded);
                    subscribed.map(drop)
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => Ok(()),
                // The bus that we hold is the sender.
                Err(broadcast::error::RecvError::Closed) => Ok(()),
            },
        };
        match alive {
            Ok(()) => {}
            // systemd is there and has nothing against us being there.
            Err(error) if error.is_refusal() => tracing::debug!(error = chain(&error), "refused"),
            Err(error) => return error,
        }
    }
}

async fn ping(bus: &Bus) -> Result<(), BusError> {
    let target = bus::Target {
        interface: "org.freedesktop.DBus.Peer",
        ..SYSTEMD
    };
    bus.call(target, "Ping", &()).await.map(drop)
}

/// Returns the version of systemd.
async fn subscribe(bus: &Bus) -> Result<String, BusError> {
    let standing = bus::standing_rules();
    let units = services::units().into_iter().map(bus::unit_rule);
    for rule in standing.into_iter().chain(units) {
        bus.add_match(&rule).await?;
    }
    match bus.call(SYSTEMD, "Subscribe", &()).await {
        Ok(_) => {}
        // A second subscription of one connection is refused and not needed.
        Err(error) if error.is_refusal() => tracing::debug!(error = chain(&error), "refused"),
        Err(error) => return Err(error),
    }
    bus.property(SYSTEMD, "Version").await
}

#[cfg(test)]
mod tests {
    use super::super::{metrics::HostMetrics, units};
    use super::*;

    #[tokio::test]
    async fn where_no_systemd_is_the_conditions_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let config = BusConfig {
            address: format!("unix:path={}/none", folder.path().display()),
            deadline: Duration::from_secs(5),
            ping: Duration::from_secs(30),
        };
        let conditions = Conditions::default();
        let mut said = conditions.subscribe();
        let cancel = CancellationToken::new();
        let (link, links) = watch::channel(Link::Untried);
        let (health, _) = watch::channel(units::Health::default());
        let metrics = HostMetrics::default();
        let keep = run(
            config,
            link,
            conditions.clone(),
            metrics.clone(),
            cancel.clone(),
        );
        let follow = units::run(links, health, conditions, metrics, cancel.clone());
        let check = async {
            for (condition, status) in [
                (HypervisorCondition::SystemdConnection, Status::False),
                (HypervisorCondition::LibvirtdService, Status::Unknown),
                (HypervisorCondition::OpenvswitchService, Status::Unknown),
            ] {
                let all = said
                    .wait_for(|all| all.contains_key(&condition))
                    .await
                    .unwrap();
                let statement = all[&condition].clone().unwrap();
                assert_eq!(statement.status, status, "{condition:?}");
                assert_eq!(statement.reason, Reason::ConnectFailed);
                assert!(statement.message.contains("none"), "{}", statement.message);
            }
            cancel.cancel();
        };
        tokio::join!(keep, follow, check);
    }
}
