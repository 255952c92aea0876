//! JSON-RPC 1.0 as OVSDB and unixctl speak it: calls with deadlines, notifications, echoes.
//!
//! One task owns a connection. It never waits for anything but the next thing to do, so a peer that
//! does not read cannot keep us from reading, and a caller that has gone away leaves nothing behind.
//! Notifications wait in a bounded queue; when it is full the task stops reading, and the peer has
//! to wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use cobalt_wire::{Caller, Input, Keepalive, Outgoing, Output, Unanswered, Watch, read};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Closed, Error, ProtocolError};
use crate::framing::{FrameError, Framer};
use crate::options::Options;

/// How many calls wait for their turn here; more wait with their callers.
const CALLS: usize = 16;
/// How many notifications may wait to be taken.
const NOTIFICATIONS: usize = 64;
/// A peer that asks whether we are there, and does not read what we say, gets no more answers than
/// fit here.
const MAX_UNREAD_ECHOES: usize = 64 * 1024;
/// A peer that leaves as much as this of what it is asked is not worth asking more.
const MAX_UNREAD_CALLS: usize = 1024 * 1024;

/// Something that the peer tells without having been asked.
#[derive(Debug)]
pub struct Notification {
    /// What it is.
    pub method: String,
    /// Its parameters, as JSON.
    pub params: Bytes,
}

/// What came of a call, as JSON: a result, or an error.
type Answer = Result<Bytes, Bytes>;

#[derive(Debug)]
pub struct Call {
    method: String,
    params: Box<RawValue>,
    reply: oneshot::Sender<Answer>,
}

/// A handle of the task that owns a connection. The connection ends with the last of them.
#[derive(Debug, Clone)]
pub struct Rpc(Caller<Task>);

/// A message, before it is known what it is.
#[derive(Debug, Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// What a message is.
#[derive(Debug)]
pub enum Message {
    /// The peer asks whether we are there: what it wants to hear, and the number of its question.
    Echo {
        /// To be sent back.
        params: Bytes,
        /// To be sent back, too.
        id: Bytes,
    },
    /// The peer tells something.
    Notification(Notification),
    /// The peer answers.
    Answer {
        /// The number of the call.
        id: u64,
        /// What it says.
        answer: Answer,
    },
    /// Nothing of interest.
    Other,
}

impl Message {
    /// Reads a message.
    pub fn read(bytes: &Bytes) -> Result<Self, FrameError> {
        let envelope: Envelope<'_> = serde_json::from_slice(bytes)
            .map_err(|error| FrameError::Malformed(error.to_string()))?;
        let part = |raw: &RawValue| bytes.slice_ref(raw.get().as_bytes());
        let present = |raw: Option<&'_ RawValue>| raw.is_some_and(|raw| raw.get() != "null");
        if let Some(method) = envelope.method {
            let params = envelope.params.map_or(Bytes::from_static(b"[]"), part);
            return Ok(match envelope.id {
                Some(id) if method == "echo" => Self::Echo {
                    params,
                    id: part(id),
                },
                // Nothing else is ever asked of a client.
                Some(id) if id.get() != "null" => Self::Other,
                _ => Self::Notification(Notification {
                    method: method.into_owned(),
                    params,
                }),
            });
        }
        let Some(id) = envelope.id.and_then(|id| id.get().parse().ok()) else {
            return Ok(Self::Other);
        };
        let answer = match (envelope.error, envelope.result) {
            (Some(error), _) if present(Some(error)) => Err(part(error)),
            (_, Some(result)) => Ok(part(result)),
            (_, None) => Ok(Bytes::from_static(b"null")),
        };
        Ok(Self::Answer { id, answer })
    }
}

#[derive(Serialize)]
struct Request<'a> {
    method: &'a str,
    params: &'a RawValue,
    id: u64,
}

impl Rpc {
    /// Starts the task. Without a keepalive a silent peer is noticed by those who ask it.
    pub fn start(
        input: Input,
        output: Output,
        options: &Options,
        keepalive: Option<Keepalive>,
    ) -> (Self, mpsc::Receiver<Notification>) {
        let (calls_sender, calls) = mpsc::channel(CALLS);
        let (notify, notifications) = mpsc::channel(NOTIFICATIONS);
        let task = Task {
            input,
            outgoing: Outgoing::new(output),
            calls,
            notify,
            stalled: None,
            framer: Framer::new(options.max_message),
            pending: BTreeMap::new(),
            serial: 0,
            watch: Watch::new(keepalive),
        };
        let caller = Caller::start(task, calls_sender, options.call_timeout);
        (Self(caller), notifications)
    }

    /// The same connection with another deadline for each call.
    pub fn with_call_timeout(&self, call_timeout: Duration) -> Self {
        Self(self.0.with_timeout(call_timeout))
    }

    /// Asks. `what` says it in an error.
    pub async fn call(
        &self,
        method: &str,
        what: &str,
        params: &impl Serialize,
    ) -> Result<Answer, Error> {
        let params = serde_json::value::to_raw_value(params).map_err(|error| {
            Error::BadArgument(format!("{what} cannot be written as JSON: {error}"))
        })?;
        let call = |reply| Call {
            method: method.to_owned(),
            params,
            reply,
        };
        self.0.ask(call).await.map_err(|why| match why {
            Unanswered::Dropped(why) => Error::Closed(why.unwrap_or(Closed::Local)),
            Unanswered::Timeout(after) => Error::Timeout {
                call: what.to_owned(),
                after,
            },
        })
    }

    /// Why the connection is over, if it is.
    pub fn why_closed(&self) -> Option<Closed> {
        self.0.why_closed()
    }

    /// Waits until the connection is over.
    pub async fn closed(&self) -> Closed {
        self.0.closed().await
    }
}

/// The task that owns a connection.
pub struct Task {
    input: Input,
    outgoing: Outgoing,
    calls: mpsc::Receiver<Call>,
    notify: mpsc::Sender<Notification>,
    /// What did not fit into the queue. Nothing is read as long as it is here.
    stalled: Option<Notification>,
    framer: Framer,
    /// Who waits for which answer; nobody for our own echoes.
    pending: BTreeMap<u64, oneshot::Sender<Answer>>,
    serial: u64,
    watch: Watch,
}

impl cobalt_wire::Task for Task {
    type Call = Call;
    type Broken = ProtocolError;

    fn into_output(self) -> Output {
        self.outgoing.into_output()
    }

    async fn run(&mut self) -> Closed {
        loop {
            let reading = self.stalled.is_none();
            // Every branch can be dropped half-way without losing a byte.
            let ended = tokio::select! {
                read = read(&mut self.input, self.framer.space()), if reading => self.read(read),
                () = room(&self.notify), if !reading => {
                    if let Some(stalled) = self.stalled.take() {
                        self.tell(stalled);
                    }
                    self.take_all()
                }
                written = self.outgoing.write(), if self.outgoing.is_unwritten() => {
                    written.map_err(|error| self.lost(&error))
                }
                call = self.calls.recv() => match call {
                    Some(_) if self.outgoing.unsent() >= MAX_UNREAD_CALLS => Err(Closed::Deaf),
                    Some(call) => {
                        self.call(call);
                        Ok(())
                    }
                    None => Err(Closed::Local),
                },
                // Who does not read does not hear.
                () = self.watch.silence(), if reading => self.ask(),
            };
            if let Err(why) = ended {
                return why;
            }
        }
    }
}

impl Task {
    fn read(&mut self, read: io::Result<()>) -> Result<(), Closed> {
        read.map_err(|error| self.lost(&error))?;
        self.watch.heard();
        self.take_all()
    }

    /// Takes the messages that are there, up to a notification for which there is no room.
    fn take_all(&mut self) -> Result<(), Closed> {
        while self.stalled.is_none()
            && let Some(bytes) = self.framer.next().map_err(broken)?
        {
            self.take(Message::read(&bytes).map_err(broken)?);
        }
        if self.stalled.is_none() {
            self.watch.heard();
        }
        Ok(())
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Echo { params, id } => {
                if self.outgoing.unsent() < MAX_UNREAD_ECHOES {
                    self.outgoing.push(b"{\"error\":null,\"result\":");
                    self.outgoing.push(&params);
                    self.outgoing.push(b",\"id\":");
                    self.outgoing.push(&id);
                    self.outgoing.push(b"}");
                }
            }
            Message::Notification(notification) => self.tell(notification),
            Message::Answer { id, answer } => match self.pending.remove(&id) {
                // Whoever asked may have given up.
                Some(caller) => drop(caller.send(answer)),
                None => tracing::trace!(id, "an answer that nobody waits for"),
            },
            Message::Other => tracing::debug!("a message that nobody asked for"),
        }
    }

    fn tell(&mut self, notification: Notification) {
        use mpsc::error::TrySendError;
        match self.notify.try_send(notification) {
            // Where nobody takes notifications any more there is room for all of them.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(notification)) => self.stalled = Some(notification),
        }
    }

    fn lost(&self, error: &io::Error) -> Closed {
        Closed::lost(error, self.framer.is_empty())
    }

    /// The peer has been silent for long enough to be asked, or to be given up.
    fn ask(&mut self) -> Result<(), Closed> {
        self.watch.ask()?;
        self.serial += 1;
        let question = format!(
            "{{\"method\":\"echo\",\"params\":[],\"id\":{}}}",
            self.serial
        );
        self.outgoing.push(question.as_bytes());
        Ok(())
    }

    fn call(&mut self, call: Call) {
        // What has not been sent has not happened: nobody waits for it, so nobody wants it.
        if call.reply.is_closed() {
            return;
        }
        // Those who have given up need no place any more.
        self.pending.retain(|_, caller| !caller.is_closed());
        self.serial += 1;
        let request = Request {
            method: &call.method,
            params: &call.params,
            id: self.serial,
        };
        // A call that cannot be written is dropped, and its caller is told so.
        if let Ok(bytes) = serde_json::to_vec(&request) {
            self.outgoing.push(&bytes);
            self.pending.insert(self.serial, call.reply);
        }
    }
}

/// Waits until there is room for a notification, or nobody who wants one.
async fn room(notify: &mpsc::Sender<Notification>) {
    drop(notify.reserve().await);
}

fn broken(error: FrameError) -> Closed {
    Closed::Protocol(error.into())
}

#[cfg(test)]
mod tests;
