//! The one task of a connection: it writes calls, reads answers and events, and notices silence.
//!
//! It never waits for anything but the next thing to do, so a peer that does not read cannot keep
//! us from reading, and a caller that has gone away leaves nothing behind.

use std::collections::BTreeMap;
use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::error::Closed;
use crate::event::{self, Sink};
use crate::message::{Framer, Header, KEEPALIVE, KEEPALIVE_PING, KEEPALIVE_PONG, Kind, REMOTE};
use crate::options::{Keepalive, Options};
use crate::procedure::{EVENT_DEREGISTER, Procedure};
use crate::transport::{Input, Output};
use crate::xdr::{Reader, Writer};

/// A peer that asks whether we are there, and does not read what we say, gets no more answers than
/// fit here.
const MAX_UNREAD_PONGS: usize = 64 * 1024;
/// How many calls wait for their turn here; more wait with their callers.
const CALLS: usize = 64;
/// How many orders may wait. They are obeyed at once.
const ORDERS: usize = 64;
/// How long a goodbye may take.
const GOODBYE: std::time::Duration = std::time::Duration::from_secs(1);

/// An answer.
pub struct Reply {
    /// Whether the payload is an error.
    pub failed: bool,
    /// What the procedure returns, or the error.
    pub payload: Bytes,
}

/// A question.
pub struct Call {
    /// What is asked.
    pub procedure: Procedure,
    /// Its arguments.
    pub payload: Vec<u8>,
    /// Who waits for the answer. Without anybody it is asked all the same.
    pub reply: Option<oneshot::Sender<Reply>>,
    /// Where the events go that this call subscribes to.
    pub sink: Option<Sink>,
}

impl Call {
    /// Whoever asked has given up.
    fn is_abandoned(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// What the task is told.
pub enum Order {
    /// To begin with the keepalive, which the peer has agreed to.
    Watch(Keepalive),
    /// To keep a stream that is subscribed to nothing until the connection ends.
    Hold(Sink),
    /// To end these subscriptions.
    Unsubscribe(Vec<i32>),
    /// To end.
    Close,
}

/// A call that libvirt works on.
struct Pending {
    procedure: Procedure,
    reply: Option<oneshot::Sender<Reply>>,
    sink: Option<Sink>,
}

struct Watch {
    keepalive: Keepalive,
    /// How many questions are without an answer.
    asked: u32,
    /// When something is done about silence.
    due: Instant,
}

struct Task {
    input: Input,
    output: Output,
    calls: mpsc::Receiver<Call>,
    orders: mpsc::Receiver<Order>,
    framer: Framer,
    /// What is to be sent.
    unsent: BytesMut,
    /// Something is to be sent, or may be in the buffers of the transport.
    unwritten: bool,
    /// Calls that libvirt works on, with or without somebody who waits. Their number is bounded,
    /// so one that is never answered stays for good and harms nobody.
    pending: BTreeMap<u32, Pending>,
    max_in_flight: usize,
    serial: u32,
    watch: Option<Watch>,
    sinks: BTreeMap<i32, Sink>,
    held: Vec<Sink>,
}

/// What others have of the task.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Takes calls, as many as libvirt may work on.
    pub calls: mpsc::Sender<Call>,
    /// Takes orders, always.
    pub orders: mpsc::Sender<Order>,
    /// Why the connection is over, when it is.
    pub closed: watch::Receiver<Option<Closed>>,
}

/// Starts the task. It ends when it is told to, when nobody can tell it anything any more, or with
/// the connection; then it says why.
pub fn start(input: Input, output: Output, options: &Options) -> Handle {
    let (calls_sender, calls) = mpsc::channel(CALLS);
    let (orders_sender, orders) = mpsc::channel(ORDERS);
    let (closed, seen) = watch::channel(None);
    let mut task = Task {
        input,
        output,
        calls,
        orders,
        framer: Framer::new(options.max_message),
        unsent: BytesMut::new(),
        unwritten: false,
        pending: BTreeMap::new(),
        max_in_flight: options.max_in_flight.max(1),
        serial: 0,
        watch: None,
        sinks: BTreeMap::new(),
        held: Vec::new(),
    };
    #[allow(
        clippy::disallowed_methods,
        reason = "it ends with the last handle, and says why it ended"
    )]
    tokio::spawn(async move {
        let why = task.run().await;
        tracing::debug!(%why, "connection to libvirt ended");
        // Said before the callers and readers are let go of, who will ask.
        closed.send_replace(Some(why));
        let mut output = task.let_go();
        // A goodbye is a courtesy: nobody cares how it goes.
        drop(tokio::time::timeout(GOODBYE, output.shutdown()).await);
    });
    Handle {
        calls: calls_sender,
        orders: orders_sender,
        closed: seen,
    }
}

impl Task {
    /// Everything but the way to the peer.
    fn let_go(self) -> Output {
        self.output
    }

    async fn run(&mut self) -> Closed {
        loop {
            let due = self.watch.as_ref().map(|watch| watch.due);
            let silence = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            // Every branch can be dropped half-way without losing a byte.
            let ended = tokio::select! {
                read = self.input.read_buf(self.framer.space()) => self.read(read),
                written = write(&mut self.output, &mut self.unsent), if self.unwritten => {
                    match written {
                        Ok(all) => {
                            self.unwritten = !all;
                            Ok(())
                        }
                        Err(error) => Err(self.lost(&error)),
                    }
                }
                // The rest waits in the channel, and with those who would put more into it.
                Some(call) = self.calls.recv(), if self.pending.len() < self.max_in_flight => {
                    self.call(call);
                    Ok(())
                }
                order = self.orders.recv() => self.obey(order),
                () = silence => self.ask(),
            };
            if let Err(why) = ended {
                return why;
            }
        }
    }

    /// Bytes have arrived.
    fn read(&mut self, read: io::Result<usize>) -> Result<(), Closed> {
        match read {
            Ok(0) => return Err(self.ended()),
            Ok(_) => {}
            Err(error) => return Err(self.lost(&error)),
        }
        if let Some(watch) = &mut self.watch {
            // Whatever it says, it is there.
            watch.asked = 0;
            watch.due = Instant::now() + watch.keepalive.interval;
        }
        while let Some((header, payload)) = self.framer.next().map_err(Closed::Protocol)? {
            self.take(header, payload);
        }
        Ok(())
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

    /// A message has arrived.
    fn take(&mut self, header: Header, payload: Bytes) {
        match (header.program, header.kind) {
            (KEEPALIVE, Kind::Event) => {
                if header.procedure == KEEPALIVE_PING && self.unsent.len() < MAX_UNREAD_PONGS {
                    self.keepalive(KEEPALIVE_PONG);
                }
            }
            (REMOTE, Kind::Event) => self.deliver(header.procedure, &payload),
            (program, Kind::Reply) => self.answer(program, header, payload),
            _ => tracing::debug!(?header, "libvirt sent a message that nobody asked for"),
        }
    }

    fn answer(&mut self, program: u32, header: Header, payload: Bytes) {
        let Some(pending) = self.pending.remove(&header.serial) else {
            tracing::debug!(?header, "libvirt answered what was not asked");
            return;
        };
        let expected = pending.procedure;
        if program != expected.program || header.procedure != expected.number {
            tracing::warn!(?header, asked = ?expected, "libvirt answered something else");
            // Whoever waits learns it from the end of the channel.
            return;
        }
        let mut subscribed = None;
        if let Some(sink) = pending.sink
            && !header.failed
            && let Ok(callback) = Reader::new(&payload).i32()
        {
            // Here, and not by the caller: the first event may be in the same packet.
            self.sinks.insert(callback, sink);
            subscribed = Some(callback);
        }
        let reply = Reply {
            failed: header.failed,
            payload,
        };
        let heard = pending
            .reply
            .is_some_and(|caller| caller.send(reply).is_ok());
        if !heard && let Some(callback) = subscribed {
            self.unsubscribe(callback);
        }
    }

    fn deliver(&mut self, procedure: i32, payload: &[u8]) {
        let Ok(callback) = Reader::new(payload).i32() else {
            tracing::warn!(procedure, "libvirt sent an event without a subscription");
            return;
        };
        // One that was on its way when the subscription ended.
        let Some(sink) = self.sinks.get(&callback) else {
            return;
        };
        if sink.is_closed() {
            // It was dropped when no more orders were taken.
            self.unsubscribe(callback);
            return;
        }
        match event::decode(procedure, payload) {
            Ok(Some((_, event))) => sink.push(event),
            Ok(None) => tracing::debug!(procedure, "libvirt sent an unknown event"),
            Err(error) => {
                tracing::warn!(procedure, %error, "libvirt sent an event that cannot be read");
                sink.lose();
            }
        }
    }

    fn obey(&mut self, order: Option<Order>) -> Result<(), Closed> {
        match order {
            Some(Order::Watch(keepalive)) => {
                self.watch = Some(Watch {
                    keepalive,
                    asked: 0,
                    due: Instant::now() + keepalive.interval,
                });
            }
            Some(Order::Hold(sink)) => {
                self.held.retain(|sink| !sink.is_closed());
                self.held.push(sink);
            }
            Some(Order::Unsubscribe(callbacks)) => {
                for callback in callbacks {
                    self.unsubscribe(callback);
                }
            }
            Some(Order::Close) | None => return Err(Closed::Local),
        }
        Ok(())
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
        self.keepalive(KEEPALIVE_PING);
        Ok(())
    }

    fn keepalive(&mut self, procedure: i32) {
        let header = Header {
            program: KEEPALIVE,
            procedure,
            kind: Kind::Event,
            serial: 0,
            failed: false,
        };
        self.write(&header, &[]);
    }

    fn write(&mut self, header: &Header, payload: &[u8]) {
        self.unsent.extend_from_slice(&header.frame(payload));
        self.unwritten = true;
    }

    fn unsubscribe(&mut self, callback: i32) {
        if self.sinks.remove(&callback).is_some() {
            self.call(Call {
                procedure: EVENT_DEREGISTER,
                payload: Writer::new().i32(callback).into_bytes(),
                reply: None,
                sink: None,
            });
        }
    }

    fn call(&mut self, call: Call) {
        // What has not been sent has not happened: nobody waits for it, so nobody wants it.
        if call.is_abandoned() {
            return;
        }
        let serial = self.next_serial();
        let header = Header {
            program: call.procedure.program,
            procedure: call.procedure.number,
            kind: Kind::Call,
            serial,
            failed: false,
        };
        self.write(&header, &call.payload);
        let pending = Pending {
            procedure: call.procedure,
            reply: call.reply,
            sink: call.sink,
        };
        self.pending.insert(serial, pending);
    }

    /// The next number that no call has. There are always some: few calls are pending.
    fn next_serial(&mut self) -> u32 {
        loop {
            self.serial = self.serial.wrapping_add(1);
            if self.serial != 0 && !self.pending.contains_key(&self.serial) {
                return self.serial;
            }
        }
    }
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
