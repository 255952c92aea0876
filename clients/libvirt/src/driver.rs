//! The one task of a connection: it writes calls, reads answers and events, and notices silence.
//!
//! It never waits for anything but the next thing to do, so a peer that does not read cannot keep
//! us from reading, and a caller that has gone away leaves nothing behind.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use cobalt_wire::{Caller, Input, Keepalive, Outgoing, Output, Watch, read};
use tokio::sync::{mpsc, oneshot};

use crate::error::Closed;
use crate::event::{self, Sink};
use crate::message::{
    FrameError, Framer, Header, KEEPALIVE, KEEPALIVE_PING, KEEPALIVE_PONG, Kind, REMOTE,
};
use crate::options::Options;
use crate::procedure::{EVENT_DEREGISTER, Procedure};
use crate::xdr::{Reader, Writer};

/// A peer that asks whether we are there, and does not read what we say, gets no more answers than
/// fit here.
const MAX_UNREAD_PONGS: usize = 64 * 1024;
/// How many calls wait for their turn here; more wait with their callers.
const CALLS: usize = 64;
/// How many orders may wait. They are obeyed at once.
const ORDERS: usize = 64;

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

/// Owns the connection; see [`start`].
pub struct Task {
    input: Input,
    outgoing: Outgoing,
    calls: mpsc::Receiver<Call>,
    orders: mpsc::Receiver<Order>,
    framer: Framer,
    /// Calls that libvirt works on, with or without somebody who waits. Their number is bounded,
    /// so one that is never answered stays for good and harms nobody.
    pending: BTreeMap<u32, Pending>,
    max_in_flight: usize,
    serial: u32,
    watch: Watch,
    sinks: BTreeMap<i32, Sink>,
    held: Vec<Sink>,
}

/// Starts the task. It ends when it is told to, when nobody can tell it anything any more, or with
/// the connection. It takes as many calls as libvirt may work on, and orders always.
pub fn start(
    input: Input,
    output: Output,
    options: &Options,
) -> (Caller<Task>, mpsc::Sender<Order>) {
    let (calls_sender, calls) = mpsc::channel(CALLS);
    let (orders_sender, orders) = mpsc::channel(ORDERS);
    let task = Task {
        input,
        outgoing: Outgoing::new(output),
        calls,
        orders,
        framer: Framer::new(options.max_message),
        pending: BTreeMap::new(),
        max_in_flight: options.max_in_flight.max(1),
        serial: 0,
        watch: Watch::new(None),
        sinks: BTreeMap::new(),
        held: Vec::new(),
    };
    let caller = Caller::start(task, calls_sender, options.call_timeout);
    (caller, orders_sender)
}

impl cobalt_wire::Task for Task {
    type Call = Call;
    type Broken = FrameError;

    fn into_output(self) -> Output {
        self.outgoing.into_output()
    }

    async fn run(&mut self) -> Closed {
        loop {
            // Every branch can be dropped half-way without losing a byte.
            let ended = tokio::select! {
                read = read(&mut self.input, self.framer.space()) => self.read(read),
                written = self.outgoing.write(), if self.outgoing.is_unwritten() => {
                    written.map_err(|error| self.lost(&error))
                }
                // The rest waits in the channel, and with those who would put more into it.
                Some(call) = self.calls.recv(), if self.pending.len() < self.max_in_flight => {
                    self.call(call);
                    Ok(())
                }
                order = self.orders.recv() => self.obey(order),
                () = self.watch.silence() => self.ask(),
            };
            if let Err(why) = ended {
                return why;
            }
        }
    }
}

impl Task {
    /// Bytes have arrived.
    fn read(&mut self, read: io::Result<()>) -> Result<(), Closed> {
        read.map_err(|error| self.lost(&error))?;
        self.watch.heard();
        while let Some((header, payload)) = self.framer.next().map_err(Closed::Protocol)? {
            self.take(header, payload);
        }
        Ok(())
    }

    fn lost(&self, error: &io::Error) -> Closed {
        Closed::lost(error, self.framer.is_empty())
    }

    /// A message has arrived.
    fn take(&mut self, header: Header, payload: Bytes) {
        match (header.program, header.kind) {
            (KEEPALIVE, Kind::Event) => {
                if header.procedure == KEEPALIVE_PING && self.outgoing.unsent() < MAX_UNREAD_PONGS {
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
            Some(Order::Watch(keepalive)) => self.watch = Watch::new(Some(keepalive)),
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
        self.watch.ask()?;
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
        self.outgoing.push(&header.frame(payload));
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

#[cfg(test)]
mod tests;
