//! The system bus as the other parts of the host task see it: every call has a deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;
use zbus::message::Message;
use zbus::{Connection, DBusError, DynamicType, OwnedVariant, fdo};

pub use super::signals::{Signal, decode, job_rule, standing_rules, unit_path, unit_rule};

/// Properties of an object.
pub type Properties = BTreeMap<String, OwnedVariant>;

/// An interface of a service on the bus.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The service.
    pub service: &'static str,
    /// The object.
    pub path: &'static str,
    /// The interface.
    pub interface: &'static str,
}

/// The bus itself.
pub const BUS: Target = Target {
    service: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};
/// systemd's manager.
pub const SYSTEMD: Target = Target {
    service: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
/// logind's manager.
pub const LOGIND: Target = Target {
    service: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
/// hostnamed.
pub const HOSTNAMED: Target = Target {
    service: "org.freedesktop.hostname1",
    path: "/org/freedesktop/hostname1",
    interface: "org.freedesktop.hostname1",
};
pub(super) const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// What every unit has.
pub const UNIT: &str = "org.freedesktop.systemd1.Unit";

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// Nobody answered in time.
    #[error("{method} was not answered within {} s", .after.as_secs())]
    Timeout {
        /// What was called.
        method: String,
        /// The deadline.
        after: Duration,
    },
    /// The service said no.
    #[error("{method} was refused: {message} ({name})")]
    Refused {
        /// What was called.
        method: String,
        /// The name of the error.
        name: String,
        /// What the service says about it.
        message: String,
    },
    /// The bus or the service is not there, or what came back is not an answer.
    #[error("{method} failed")]
    Failed {
        /// What was called.
        method: String,
        /// What happened.
        #[source]
        source: Box<zbus::Error>,
    },
}

impl BusError {
    /// Whether the service was asked and said no: asking again right away would not help.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    fn new(method: &str, error: zbus::Error) -> Self {
        let method = method.to_owned();
        let refused = |name: String, message: Option<&str>| Self::Refused {
            method: method.clone(),
            name,
            message: message.unwrap_or("no reason was given").to_owned(),
        };
        match &error {
            zbus::Error::MethodError(name, text, _) => refused(name.to_string(), text.as_deref()),
            zbus::Error::FDO(known) if !is_trouble(known) => {
                refused(known.name().to_string(), known.description())
            }
            _ => Self::Failed {
                method,
                source: Box::new(error),
            },
        }
    }
}

/// The bus speaks, not the service: nobody is there, or it has just gone.
fn is_trouble(error: &fdo::Error) -> bool {
    matches!(
        error,
        fdo::Error::ZBus(_)
            | fdo::Error::ServiceUnknown(_)
            | fdo::Error::NameHasNoOwner(_)
            | fdo::Error::NoReply(_)
            | fdo::Error::IOError(_)
            | fdo::Error::NoServer(_)
            | fdo::Error::Timeout(_)
            | fdo::Error::Disconnected(_)
            | fdo::Error::LimitsExceeded(_)
            | fdo::Error::NoMemory(_)
    )
}

/// The system bus while it is connected. A clone is the same connection.
#[derive(Debug, Clone)]
pub struct Bus {
    connection: Connection,
    signals: broadcast::Sender<Arc<Signal>>,
    deadline: Duration,
}

impl Bus {
    pub(super) fn new(
        connection: Connection,
        signals: broadcast::Sender<Arc<Signal>>,
        deadline: Duration,
    ) -> Self {
        Self {
            connection,
            signals,
            deadline,
        }
    }

    /// The signals from now on. Whoever lags behind reads the state again.
    #[must_use]
    pub fn signals(&self) -> broadcast::Receiver<Arc<Signal>> {
        self.signals.subscribe()
    }

    /// Tells the other parts something as if it had come from the bus.
    pub(super) fn tell(&self, signal: Signal) {
        // Nobody may be listening; that is fine.
        drop(self.signals.send(Arc::new(signal)));
    }

    /// Whether both are the same connection.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.connection.unique_name() == other.connection.unique_name()
            && self.connection.server_guid() == other.connection.server_guid()
    }

    /// Calls a method.
    ///
    /// # Errors
    ///
    /// When it is refused, the service is not there, or nobody answers in time.
    pub async fn call<B>(&self, target: Target, method: &str, body: &B) -> Result<Message, BusError>
    where
        B: Serialize + DynamicType + Sync,
    {
        self.call_at(target.service, target.path, target.interface, method, body)
            .await
    }

    /// Calls a method and reads its answer.
    ///
    /// # Errors
    ///
    /// As [`Self::call`], and when the answer has another type.
    pub async fn ask<B, T>(&self, target: Target, method: &str, body: &B) -> Result<T, BusError>
    where
        B: Serialize + DynamicType + Sync,
        T: DeserializeOwned + zbus::Type,
    {
        let answer = self.call(target, method, body).await?;
        read(method, &answer)
    }

    /// All properties of one interface of an object.
    ///
    /// # Errors
    ///
    /// As [`Self::ask`].
    pub async fn properties(
        &self,
        service: &'static str,
        path: &str,
        interface: &str,
    ) -> Result<Properties, BusError> {
        let answer = self
            .call_at(service, path, PROPERTIES, "GetAll", &(interface,))
            .await?;
        read("GetAll", &answer)
    }

    /// One property of the object of a target.
    ///
    /// # Errors
    ///
    /// As [`Self::ask`].
    pub async fn property<T>(&self, target: Target, name: &str) -> Result<T, BusError>
    where
        T: TryFrom<OwnedVariant, Error = zbus::Error>,
    {
        let body = (target.interface, name);
        let answer = self
            .call_at(target.service, target.path, PROPERTIES, "Get", &body)
            .await?;
        let value: OwnedVariant = read("Get", &answer)?;
        T::try_from(value).map_err(|error| BusError::new("Get", error))
    }

    /// Asks the bus for signals.
    ///
    /// # Errors
    ///
    /// As [`Self::call`].
    pub async fn add_match(&self, rule: &str) -> Result<(), BusError> {
        self.call(BUS, "AddMatch", &(rule,)).await.map(drop)
    }

    /// Asks the bus not to send them any more.
    ///
    /// # Errors
    ///
    /// As [`Self::call`].
    pub async fn remove_match(&self, rule: &str) -> Result<(), BusError> {
        self.call(BUS, "RemoveMatch", &(rule,)).await.map(drop)
    }

    async fn call_at<B>(
        &self,
        service: &str,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<Message, BusError>
    where
        B: Serialize + DynamicType + Sync,
    {
        let call = self
            .connection
            .call_method(Some(service), path, Some(interface), method, body);
        match tokio::time::timeout(self.deadline, call).await {
            Ok(answer) => answer.map_err(|error| BusError::new(method, error)),
            Err(_) => Err(BusError::Timeout {
                method: method.to_owned(),
                after: self.deadline,
            }),
        }
    }
}

fn read<T>(method: &str, answer: &Message) -> Result<T, BusError>
where
    T: DeserializeOwned + zbus::Type,
{
    let body = answer.body();
    body.deserialize()
        .map_err(|error| BusError::new(method, error))
}

/// A property that is text.
#[must_use]
pub fn text(properties: &Properties, name: &str) -> Option<String> {
    let text: &str = properties.get(name)?.try_into().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}
