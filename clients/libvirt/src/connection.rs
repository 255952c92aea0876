//! A connection to libvirt: opening it, calling through it, closing it.

use std::time::Duration;

use bytes::Bytes;
use cobalt_wire::{Caller, Input, Output, Unanswered, within};
use futures::future::join_all;
use tokio::sync::mpsc;

use crate::driver::{self, Call, Order, Task};
use crate::error::{Closed, Error, LibvirtError, codes};
use crate::event::{EventKind, EventStream, Sink};
use crate::message::HEAD;
use crate::options::Options;
use crate::procedure::{
    AUTH_LIST, CONNECT_CLOSE, CONNECT_OPEN, CONNECT_SUPPORTS_FEATURE, EVENT_REGISTER, Procedure,
};
use crate::transport;
use crate::uri::Uri;
use crate::xdr::{Reader, Writer, XdrError, XdrResult};

/// Features of libvirt that are asked for (`virDrvFeature`).
const FEATURE_KEEPALIVE: i32 = 10;
const FEATURE_EVENT_CALLBACKS: i32 = 14;
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// A handle of the task that owns a connection.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    task: Caller<Task>,
    orders: mpsc::Sender<Order>,
    call_timeout: Duration,
    max_message: usize,
}

impl Client {
    pub fn start(input: Input, output: Output, options: &Options) -> Self {
        let (task, orders) = driver::start(input, output, options);
        Self {
            task,
            orders,
            call_timeout: options.call_timeout,
            max_message: options.max_message,
        }
    }

    pub fn with_call_timeout(&self, call_timeout: Duration) -> Self {
        Self {
            task: self.task.with_timeout(call_timeout),
            call_timeout,
            ..self.clone()
        }
    }

    /// Asks, and reads the answer.
    pub async fn call<T>(
        &self,
        procedure: Procedure,
        arguments: Writer,
        read: impl FnOnce(&mut Reader<'_>) -> XdrResult<T>,
    ) -> Result<T, Error> {
        let answer = self
            .exchange(procedure, arguments.into_bytes(), None)
            .await?;
        read(&mut Reader::new(&answer)).map_err(|problem| Error::Protocol {
            procedure: procedure.name,
            problem,
        })
    }

    async fn exchange(
        &self,
        procedure: Procedure,
        payload: Vec<u8>,
        sink: Option<Sink>,
    ) -> Result<Bytes, Error> {
        let length = HEAD.saturating_add(payload.len());
        if length > self.max_message {
            return Err(Error::BadArgument(format!(
                "{length} bytes are too many for a message ({}): {} are allowed",
                procedure.name, self.max_message
            )));
        }
        let call = |reply| Call {
            procedure,
            payload,
            reply: Some(reply),
            sink,
        };
        let answer = self.task.ask(call).await;
        let procedure = procedure.name;
        let reply = answer.map_err(|why| match why {
            Unanswered::Timeout(after) => Error::Timeout { procedure, after },
            Unanswered::Dropped(Some(why)) => Error::Closed(why),
            Unanswered::Dropped(None) => Error::Protocol {
                procedure,
                problem: XdrError::Mismatch,
            },
        })?;
        if !reply.failed {
            return Ok(reply.payload);
        }
        Err(match LibvirtError::read(&mut Reader::new(&reply.payload)) {
            Ok(error) => Error::Libvirt {
                procedure,
                error: Box::new(error),
            },
            Err(problem) => Error::Protocol { procedure, problem },
        })
    }

    /// Tells the task. One that has ended has nothing to do any more.
    pub async fn order(&self, order: Order) {
        drop(self.orders.send(order).await);
    }

    /// The same where nobody can wait. In a crowd the order may be lost.
    pub fn try_order(&self, order: Order) {
        drop(self.orders.try_send(order));
    }

    pub async fn closed(&self) -> Closed {
        self.task.closed().await
    }
}

/// A connection to libvirt. Clones share it; it is closed when the last of them, and the last
/// [`EventStream`], is gone.
///
/// Calls are made with any number at the same time, and each ends at the latest after
/// [`Options::call_timeout`]. A call whose future is dropped is not made if it still waits for its
/// turn; what libvirt works on already it goes on with, as after a timeout.
///
/// ```no_run
/// use cobalt_libvirt::{Connection, ListDomains, Options};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let libvirt = Connection::open(&"qemu:///system".parse()?, &Options::default()).await?;
/// for domain in libvirt.domains(ListDomains::ACTIVE).await? {
///     println!("{} is {}", domain.name, libvirt.state(&domain).await?.state.name());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Connection {
    pub(crate) client: Client,
    event_callbacks: bool,
}

impl Connection {
    /// Connects, and opens the driver that the URI names.
    pub async fn open(uri: &Uri, options: &Options) -> Result<Self, Error> {
        let opening = async {
            let (input, output) = transport::connect(uri, options.tls.as_ref()).await?;
            let mut connection = Self {
                client: Client::start(input, output, options),
                event_callbacks: false,
            };
            connection.introduce(uri, options).await?;
            Ok(connection)
        };
        within(uri, options.connect_timeout, opening).await
    }

    /// A connection that is past its introduction, to a fake peer.
    #[cfg(test)]
    pub(crate) fn introduced(client: Client) -> Self {
        Self {
            client,
            event_callbacks: true,
        }
    }

    async fn introduce(&mut self, uri: &Uri, options: &Options) -> Result<(), Error> {
        let methods = self
            .client
            .call(AUTH_LIST, Writer::new(), |reader| {
                reader.list(4, Reader::i32)
            })
            .await?;
        if !methods.is_empty() && !methods.contains(&0) {
            let name = |method: &i32| match method {
                1 => "SASL".to_owned(),
                2 => "polkit".to_owned(),
                other => format!("authentication method {other}"),
            };
            let methods: Vec<String> = methods.iter().map(name).collect();
            return Err(Error::Authentication {
                methods: methods.join(" or "),
            });
        }
        let arguments = Writer::new().optional_string(Some(&uri.name())).u32(0);
        self.client
            .call(CONNECT_OPEN, arguments, |_| Ok(()))
            .await?;
        self.event_callbacks = self.supports(FEATURE_EVENT_CALLBACKS).await?;
        if let Some(keepalive) = options.keepalive
            && self.supports(FEATURE_KEEPALIVE).await?
        {
            self.client.order(Order::Watch(keepalive)).await;
        }
        Ok(())
    }

    async fn supports(&self, feature: i32) -> Result<bool, Error> {
        let arguments = Writer::new().i32(feature);
        self.client
            .call(CONNECT_SUPPORTS_FEATURE, arguments, |reader| reader.bool())
            .await
    }

    /// The same connection with another deadline for each call.
    #[must_use]
    pub fn with_call_timeout(&self, call_timeout: Duration) -> Self {
        Self {
            client: self.client.with_call_timeout(call_timeout),
            ..*self
        }
    }

    /// Waits until the connection is over, and says why.
    pub async fn closed(&self) -> Closed {
        self.client.closed().await
    }

    /// Whether the connection is still there, as far as anybody has noticed; [`Self::ping`] asks.
    pub fn is_alive(&self) -> bool {
        self.client.task.why_closed().is_none()
    }

    /// Says goodbye and closes the connection, for all clones of it.
    pub async fn close(&self) {
        let goodbye = self.client.call_timeout.min(GOODBYE);
        // It is closed however libvirt takes it.
        drop(
            self.client
                .with_call_timeout(goodbye)
                .call(CONNECT_CLOSE, Writer::new(), |_| Ok(()))
                .await,
        );
        self.client.order(Order::Close).await;
        self.closed().await;
    }

    /// Subscribes to events. What this driver or this version of libvirt does not know is left out;
    /// [`EventStream::kinds`] says what is subscribed to.
    pub async fn subscribe(&self, kinds: &[EventKind]) -> Result<EventStream, Error> {
        if !self.event_callbacks {
            tracing::debug!("this libvirt has no events with subscriptions");
        }
        let mut wanted = kinds.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.retain(|_| self.event_callbacks);
        let (sink, mut stream) = EventStream::new(self.client.clone());
        let registrations = wanted.iter().map(|kind| {
            let arguments = Writer::new().i32(kind.id()).bool(false);
            self.client
                .exchange(EVENT_REGISTER, arguments.into_bytes(), Some(sink.clone()))
        });
        let answers = join_all(registrations).await;
        let mut failed = None;
        for (&kind, answer) in wanted.iter().zip(answers) {
            match answer {
                Ok(answer) => match Reader::new(&answer).i32() {
                    Ok(callback) => stream.subscribed(kind, callback),
                    Err(problem) => {
                        let procedure = EVENT_REGISTER.name;
                        failed = Some(Error::Protocol { procedure, problem });
                    }
                },
                Err(error) if is_unknown_event(&error) => {
                    tracing::debug!(?kind, %error, "libvirt does not know this event");
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            // Dropping the stream ends the subscriptions that were made.
            return Err(error);
        }
        if stream.kinds().is_empty() {
            // It has nothing to say, and still ends with the connection and not before.
            self.client.order(Order::Hold(sink)).await;
        }
        Ok(stream)
    }
}

/// libvirtd calls an event that it does not know an internal error.
fn is_unknown_event(error: &Error) -> bool {
    let code = error.code();
    error.is_not_supported()
        || code == Some(codes::INTERNAL_ERROR)
        || code == Some(codes::INVALID_ARG)
}
