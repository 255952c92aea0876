//! JSON-RPC 1.0 as OVSDB and unixctl speak it: calls with deadlines, notifications, echoes.
//!
//! One task owns a connection. It never waits for anything but the next thing to do, so a peer that
//! does not read cannot keep us from reading, and a caller that has gone away leaves nothing behind.
//! Notifications wait in a bounded queue; when it is full the task stops reading, and the peer has
//! to wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::error::{Closed, Error};
use crate::framing::{FrameError, Framer};
use crate::options::{Keepalive, Options};
use crate::transport::{Input, Output};

/// How many calls wait for their turn here; more wait with their callers.
const CALLS: usize = 16;
/// How many notifications may wait to be taken.
const NOTIFICATIONS: usize = 64;
/// A peer that asks whether we are there, and does not read what we say, gets no more answers than
/// fit here.
const MAX_UNREAD_ECHOES: usize = 64 * 1024;
/// A peer that leaves as much as this of what it is asked is not worth asking more.
const MAX_UNREAD_CALLS: usize = 1024 * 1024;
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

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

struct Call {
    method: String,
    params: Box<RawValue>,
    reply: oneshot::Sender<Answer>,
}

/// A handle of the task that owns a connection. The connection ends with the last of them.
#[derive(Clone)]
pub struct Rpc {
    calls: mpsc::Sender<Call>,
    closed: watch::Receiver<Option<Closed>>,
    call_timeout: Duration,
}

impl fmt::Debug for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rpc")
            .field("closed", &self.why_closed())
            .finish_non_exhaustive()
    }
}

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
        let (closed, seen) = watch::channel(None);
        let mut task = Task {
            input,
            output,
            calls,
            notify,
            stalled: None,
            framer: Framer::new(options.max_message),
            unsent: BytesMut::new(),
            unwritten: false,
            pending: BTreeMap::new(),
            serial: 0,
            watch: keepalive.map(Watch::new),
        };
        #[allow(
            clippy::disallowed_methods,
            reason = "it ends with the last handle, and says why it ended"
        )]
        tokio::spawn(async move {
            let why = task.run().await;
            tracing::debug!(%why, "connection ended");
            // Said before the callers and readers are let go of, who will ask.
            closed.send_replace(Some(why));
            let mut output = task.let_go();
            // A goodbye is a courtesy: nobody cares how it goes.
            drop(tokio::time::timeout(GOODBYE, output.shutdown()).await);
        });
        let rpc = Self {
            calls: calls_sender,
            closed: seen,
            call_timeout: options.call_timeout,
        };
        (rpc, notifications)
    }

    /// The same connection with another deadline for each call.
    pub fn with_call_timeout(&self, call_timeout: Duration) -> Self {
        Self {
            call_timeout,
            ..self.clone()
        }
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
        let (reply, answer) = oneshot::channel();
        let call = Call {
            method: method.to_owned(),
            params,
            reply,
        };
        let asking = async {
            // A task that has ended drops the call, and with it the way of its answer.
            drop(self.calls.send(call).await);
            answer.await
        };
        match tokio::time::timeout(self.call_timeout, asking).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Error::Closed(self.why_closed().unwrap_or(Closed::Local))),
            Err(_) => Err(Error::Timeout {
                call: what.to_owned(),
                after: self.call_timeout,
            }),
        }
    }

    /// Why the connection is over, if it is.
    pub fn why_closed(&self) -> Option<Closed> {
        match &*self.closed.borrow() {
            Some(why) => Some(why.clone()),
            // The task always says why, unless the runtime was taken away from under it.
            None if self.closed.has_changed().is_err() => Some(Closed::Local),
            None => None,
        }
    }

    /// Waits until the connection is over.
    pub async fn closed(&self) -> Closed {
        let mut closed = self.closed.clone();
        match closed.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(Closed::Local),
            Err(_) => Closed::Local,
        }
    }
}

struct Watch {
    keepalive: Keepalive,
    /// How many questions are without an answer.
    asked: u32,
    /// When something is done about silence.
    due: Instant,
}

impl Watch {
    fn new(keepalive: Keepalive) -> Self {
        Self {
            keepalive,
            asked: 0,
            due: Instant::now() + keepalive.interval,
        }
    }

    /// Whatever the peer says, it is there.
    fn heard(&mut self) {
        self.asked = 0;
        self.due = Instant::now() + self.keepalive.interval;
    }
}

struct Task {
    input: Input,
    output: Output,
    calls: mpsc::Receiver<Call>,
    notify: mpsc::Sender<Notification>,
    /// What did not fit into the queue. Nothing is read as long as it is here.
    stalled: Option<Notification>,
    framer: Framer,
    /// What is to be sent.
    unsent: BytesMut,
    /// Something is to be sent, or may be in the buffers of the transport.
    unwritten: bool,
    /// Who waits for which answer; nobody for our own echoes.
    pending: BTreeMap<u64, oneshot::Sender<Answer>>,
    serial: u64,
    watch: Option<Watch>,
}

impl Task {
    /// Everything but the way to the peer.
    fn let_go(self) -> Output {
        self.output
    }

    async fn run(&mut self) -> Closed {
        loop {
            let reading = self.stalled.is_none();
            let due = self.watch.as_ref().map(|watch| watch.due);
            let silence = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            // Every branch can be dropped half-way without losing a byte.
            let ended = tokio::select! {
                read = self.input.read_buf(self.framer.space()), if reading => self.read(read),
                () = room(&self.notify), if !reading => {
                    if let Some(stalled) = self.stalled.take() {
                        self.tell(stalled);
                    }
                    self.take_all()
                }
                written = write(&mut self.output, &mut self.unsent), if self.unwritten => {
                    match written {
                        Ok(all) => {
                            self.unwritten = !all;
                            Ok(())
                        }
                        Err(error) => Err(self.lost(&error)),
                    }
                }
                call = self.calls.recv() => match call {
                    Some(_) if self.unsent.len() >= MAX_UNREAD_CALLS => Err(Closed::Deaf),
                    Some(call) => {
                        self.call(call);
                        Ok(())
                    }
                    None => Err(Closed::Local),
                },
                // Who does not read does not hear.
                () = silence, if reading => self.ask(),
            };
            if let Err(why) = ended {
                return why;
            }
        }
    }

    fn read(&mut self, read: io::Result<usize>) -> Result<(), Closed> {
        match read {
            Ok(0) => return Err(self.ended()),
            Ok(_) => {}
            Err(error) => return Err(self.lost(&error)),
        }
        if let Some(watch) = &mut self.watch {
            watch.heard();
        }
        self.take_all()
    }

    /// Takes the messages that are there, up to a notification for which there is no room.
    fn take_all(&mut self) -> Result<(), Closed> {
        while self.stalled.is_none()
            && let Some(bytes) = self.framer.next().map_err(Closed::Protocol)?
        {
            self.take(Message::read(&bytes).map_err(Closed::Protocol)?);
        }
        if self.stalled.is_none()
            && let Some(watch) = &mut self.watch
        {
            watch.heard();
        }
        Ok(())
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Echo { params, id } => {
                if self.unsent.len() < MAX_UNREAD_ECHOES {
                    self.unsent
                        .extend_from_slice(b"{\"error\":null,\"result\":");
                    self.unsent.extend_from_slice(&params);
                    self.unsent.extend_from_slice(b",\"id\":");
                    self.unsent.extend_from_slice(&id);
                    self.unsent.extend_from_slice(b"}");
                    self.unwritten = true;
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

    fn ended(&self) -> Closed {
        if self.framer.is_empty() {
            Closed::Peer
        } else {
            Closed::PeerMidMessage
        }
    }

    fn lost(&self, error: &io::Error) -> Closed {
        match error.kind() {
            // What a peer that was killed looks like, depending on the moment.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => self.ended(),
            _ => Closed::Io(error.to_string()),
        }
    }

    /// The peer has been silent for long enough to be asked, or to be given up.
    fn ask(&mut self) -> Result<(), Closed> {
        let Some(watch) = &mut self.watch else {
            return Ok(());
        };
        let Keepalive { interval, count } = watch.keepalive;
        if watch.asked >= count {
            return Err(Closed::Keepalive { interval, count });
        }
        watch.asked += 1;
        // From now: a process that was stopped gives its peer the time that it missed itself.
        watch.due = Instant::now() + interval;
        self.serial += 1;
        let question = format!(
            "{{\"method\":\"echo\",\"params\":[],\"id\":{}}}",
            self.serial
        );
        self.unsent.extend_from_slice(question.as_bytes());
        self.unwritten = true;
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
            self.unsent.extend_from_slice(&bytes);
            self.unwritten = true;
            self.pending.insert(self.serial, call.reply);
        }
    }
}

/// Waits until there is room for a notification, or nobody who wants one.
async fn room(notify: &mpsc::Sender<Notification>) {
    drop(notify.reserve().await);
}

/// Writes some of it, or sees to it that what was written is on its way; then it is `true`.
async fn write(output: &mut Output, unsent: &mut BytesMut) -> io::Result<bool> {
    if unsent.is_empty() {
        output.flush().await?;
        return Ok(true);
    }
    if output.write_buf(unsent).await? == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
