//! Packet captures: a mirror of one port of the switch to a port of our own, whose packets a socket
//! reads and a stream of pcap carries away.
//!
//! What a capture adds to the switch is marked with its name (`external_ids:cobalt-capture`). One
//! task takes away whatever is marked and of no capture that runs: when a capture ends, however it
//! ends, when the agent ends, and when a new one finds what a killed one left behind.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use bytes::BytesMut;
use cobalt_ovs::ovsdb::{
    Atom, Condition, Connection, Mutation, Mutator, Operation, Row, Until, Value, vswitch,
};
use cobalt_ovs::{Error, Options, Remote};
use cobalt_runtime::{Backoff, chain};
use futures::Stream;
use nix::sys::socket::LinkAddr;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::Refusal;
use super::access::Audit;
use super::filter::Filter;
use super::packets::{self, PacketSocket};
use super::pcap;
use crate::metrics::Metrics;
use crate::observe::switch::{CAPTURE_DEVICE, CAPTURE_MARK, Switch};

/// The longest packet that anybody may ask for.
pub const MAX_SNAPLEN: usize = 262_144;
/// A filter looks at headers, however little of a packet is wanted.
const MIN_READ: usize = 256;
/// How long ovs-vswitchd may take to set up a port.
const PLACE: Duration = Duration::from_secs(5);
/// How long the database may take.
const CALL: Duration = Duration::from_secs(5);
/// How much waits for the client: so many pieces, and the one that grows.
const PIECES: usize = 32;
const PIECE: usize = 32 * 1024;
/// How many packets are taken before others get their turn.
const BATCH: usize = 64;
/// How long the client may take to read what is left at the end.
const LAST: Duration = Duration::from_secs(2);
/// How long captures and those that begin may take to end with the agent.
const END: Duration = Duration::from_secs(8);
/// The next look for what is left behind, in case a database did late what it was asked for.
const LOOK: Duration = Duration::from_secs(60);

/// What captures may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long one may run.
    pub seconds: u64,
    /// How long a file may get.
    pub bytes: u64,
    /// How many may run at once.
    pub concurrent: usize,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The name of an interface or a port, or the logical port that an interface is for.
    pub interface: String,
    /// How long.
    pub seconds: u64,
    /// How many bytes of pcap.
    pub bytes: u64,
    /// How many packets.
    pub packets: Option<u64>,
    /// How much of each.
    pub snaplen: usize,
    /// Which.
    pub filter: Option<Filter>,
}

/// The marks of captures that run, and how many have ended.
#[derive(Debug, Clone, Default)]
struct Marks {
    running: BTreeSet<String>,
    ended: u64,
}

/// A capture that runs, as far as the switch is concerned. What is marked with it is taken away
/// when this is dropped.
#[derive(Debug)]
struct Mark {
    number: u64,
    name: String,
    marks: Arc<watch::Sender<Marks>>,
    metrics: Metrics,
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.metrics.captures.dec();
        self.marks.send_modify(|marks| {
            marks.running.remove(&self.name);
            marks.ended += 1;
        });
    }
}

/// The captures of this agent.
#[derive(Debug, Clone)]
pub struct Captures {
    switch: watch::Receiver<Option<Arc<Switch>>>,
    connection: watch::Receiver<Option<Connection>>,
    limits: Limits,
    slots: Arc<Semaphore>,
    marks: Arc<watch::Sender<Marks>>,
    /// Names nobody else has: this process, and a number.
    process: Arc<str>,
    metrics: Metrics,
    cancel: CancellationToken,
}

impl Captures {
    /// None runs yet.
    #[must_use]
    pub fn new(
        switch: watch::Receiver<Option<Arc<Switch>>>,
        connection: watch::Receiver<Option<Connection>>,
        limits: Limits,
        metrics: Metrics,
        cancel: CancellationToken,
    ) -> Self {
        let since = jiff::Timestamp::now().as_millisecond();
        Self {
            switch,
            connection,
            limits,
            slots: Arc::new(Semaphore::new(limits.concurrent)),
            marks: Arc::new(watch::Sender::new(Marks::default())),
            process: format!("{}-{since}", std::process::id()).into(),
            metrics,
            cancel,
        }
    }

    /// What captures may take.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Of a new capture: the next number of this process.
    fn mark(&self) -> Mark {
        let (mut number, mut name) = (0, String::new());
        self.marks.send_modify(|marks| {
            number = u64::try_from(marks.running.len()).unwrap_or(0) + marks.ended;
            name = format!("{}-{number}", self.process);
            marks.running.insert(name.clone());
        });
        self.metrics.captures.inc();
        Mark {
            number,
            name,
            marks: Arc::clone(&self.marks),
            metrics: self.metrics.clone(),
        }
    }

    /// Begins a capture. It is in place when this returns, and runs until the first of its limits,
    /// the end of its port, of the agent, or of who reads it.
    ///
    /// # Errors
    ///
    /// When it is not possible, with a remedy.
    pub async fn begin(&self, wanted: Wanted) -> Result<Started, Refusal> {
        let switch = self.switch.borrow().clone();
        let switch = switch.ok_or_else(Refusal::no_switch)?;
        let target = Target::find(&switch, &wanted.interface)?;
        if self.limits.concurrent == 0 {
            return Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "there are no captures on this node: --capture-max-concurrent is 0",
            ));
        }
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        let slot = slot.map_err(|_| {
            let most = self.limits.concurrent;
            Refusal::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!(
                    "{most} captures run on this node already, which is the most it does at once \
                     (--capture-max-concurrent): wait for one to end"
                ),
            )
        })?;
        let refuse = |why: String| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why);
        packets::permitted().map_err(refuse)?;
        let connection = self.connection.borrow().clone();
        let connection = connection.ok_or_else(Refusal::no_switch)?;
        let mark = self.mark();
        let device = device_name(&switch, mark.number);
        let place = place(&target, &device, &mark.name);
        let connection = connection.with_call_timeout(CALL);
        let outcomes = connection.transact(vswitch::DATABASE, &place).await;
        let outcomes = outcomes.map_err(|error| refused(&error, &target))?;
        let number = outcomes.last().and_then(|last| last.rows.first());
        let number = number.and_then(|row| row.get::<i64>("next_cfg"));
        let mut seen = self.switch.clone();
        placed(&mut seen, &device, number).await?;
        let socket = listen(&device, &wanted)?;
        tracing::info!(
            port = target.port,
            bridge = target.bridge,
            device,
            "a capture begins"
        );
        Ok(Started {
            run: Run {
                socket,
                device,
                port: target.port_row,
                switch: seen,
                wanted,
                mark,
                _slot: slot,
                metrics: self.metrics.clone(),
                stop: self.cancel.child_token(),
            },
            port: target.port,
        })
    }

    /// Takes away what captures leave behind, until it is cancelled and all of them have ended.
    pub async fn clean(self, remote: Remote) {
        let mut connection = self.connection.clone();
        let mut marks = self.marks.subscribe();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            let there = connection.borrow_and_update().is_some();
            let ended = marks.borrow_and_update().ended;
            let mut again = None;
            if there {
                match sweep(&remote, &marks).await {
                    Ok(()) => {
                        backoff.reset();
                        again = (ended > 0).then_some(LOOK);
                    }
                    Err(error) => {
                        let error = chain(&error);
                        tracing::warn!(error, "failed to remove what a capture left; again soon");
                        again = Some(backoff.next_wait());
                    }
                }
            }
            let later = async {
                match again {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = marks.wait_for(|now| now.ended != ended) => {}
                Ok(()) = connection.changed() => {}
                () = later => {}
                () = self.cancel.cancelled() => break,
            }
        }
        if marks.borrow().running.is_empty() && marks.borrow().ended == 0 {
            return;
        }
        // Captures end by themselves now.
        let all = marks.wait_for(|marks| marks.running.is_empty());
        drop(tokio::time::timeout(END, all).await);
        if let Err(error) = sweep(&remote, &marks).await {
            let error = chain(&error);
            tracing::warn!(
                error,
                "failed to remove what captures left; the next agent will"
            );
        }
    }
}

/// Waits until ovs-vswitchd has set up the port.
async fn placed(
    switch: &mut watch::Receiver<Option<Arc<Switch>>>,
    device: &str,
    number: Option<i64>,
) -> Result<(), Refusal> {
    let waiting = async {
        loop {
            let seen = switch.borrow_and_update().clone();
            let port = seen.as_ref().and_then(|seen| seen.captures.get(device));
            let done = seen
                .as_ref()
                .is_some_and(|seen| number.is_none_or(|number| seen.cur_cfg >= number));
            match port {
                Some(port) if port.error.is_some() || port.ofport == Some(-1) => {
                    let why = port.error.as_deref().unwrap_or("it got no number");
                    return Err(format!("ovs-vswitchd could not add a port: {why}"));
                }
                Some(port) if done && port.ofport.is_some() => return Ok(()),
                _ => {}
            }
            if switch.changed().await.is_err() {
                return Err("the agent ends".to_owned());
            }
        }
    };
    match tokio::time::timeout(PLACE, waiting).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why)),
        Err(_) => Err(Refusal::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "ovs-vswitchd did not add a port within {} s: the issues of the OVSNode say \
                 how it is, its log says why",
                PLACE.as_secs()
            ),
        )),
    }
}

/// A name for a device that no capture of this agent has, and none that another agent left behind.
fn device_name(switch: &Switch, number: u64) -> String {
    let first = number.wrapping_add(u64::from(std::process::id())) % 1000;
    let mut names = (first..first + 1000).map(|number| format!("{CAPTURE_DEVICE}{number}"));
    let free = names.find(|name| !switch.captures.contains_key(name));
    free.unwrap_or_else(|| CAPTURE_DEVICE.to_owned())
}

/// Removes ports and mirrors of captures that do not run.
async fn sweep(remote: &Remote, marks: &watch::Receiver<Marks>) -> Result<(), Error> {
    let options = Options {
        connect_timeout: CALL,
        call_timeout: CALL,
        keepalive: None,
        ..Options::default()
    };
    let connection = Connection::open(remote, &options).await?;
    let look = |table: &str| Operation::Select {
        table: table.to_owned(),
        conditions: Vec::new(),
        columns: Some(vec!["_uuid".to_owned(), "external_ids".to_owned()]),
    };
    let look = [look("Port"), look("Mirror")];
    let looked = connection.transact(vswitch::DATABASE, &look).await?;
    // Asked now and not before: a capture has its mark before it has rows.
    let running = marks.borrow().running.clone();
    let left = |index: usize| -> Vec<Uuid> {
        let rows = looked.get(index).map_or(&[][..], |outcome| &outcome.rows);
        let of_none = |row: &&Row| {
            let mark = row.in_map::<String>("external_ids", CAPTURE_MARK);
            mark.is_some_and(|mark| !running.contains(&mark))
        };
        rows.iter().filter(of_none).filter_map(Row::uuid).collect()
    };
    let (ports, mirrors) = (left(0), left(1));
    if ports.is_empty() && mirrors.is_empty() {
        return Ok(());
    }
    tracing::info!(
        ports = ports.len(),
        mirrors = mirrors.len(),
        "remove what captures have left"
    );
    let remove = [
        Operation::Mutate {
            table: "Bridge".to_owned(),
            conditions: Vec::new(),
            mutations: vec![
                Mutation::new("mirrors", Mutator::Delete, Value::set(mirrors)),
                Mutation::new("ports", Mutator::Delete, Value::set(ports)),
            ],
        },
        next_configuration(),
    ];
    connection
        .transact(vswitch::DATABASE, &remove)
        .await
        .map(drop)
}

/// Tells ovs-vswitchd to carry it out.
fn next_configuration() -> Operation {
    Operation::Mutate {
        table: "Open_vSwitch".to_owned(),
        conditions: Vec::new(),
        mutations: vec![Mutation::new("next_cfg", Mutator::Add, 1)],
    }
}

/// The port that is captured.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    bridge: String,
    bridge_row: Uuid,
    port: String,
    port_row: Uuid,
    mtu: Option<i64>,
}

impl Target {
    /// Finds it by its own name, by that of an interface, or by a logical port.
    fn find(switch: &Switch, name: &str) -> Result<Self, Refusal> {
        let ports = || {
            let bridges = switch.bridges.iter();
            bridges.flat_map(|(bridge, facts)| {
                let ports = facts.ports.iter();
                ports.map(move |(port, row)| ((bridge, facts.uuid), (port, row)))
            })
        };
        let named =
            ports().filter(|(_, (port, row))| *port == name || row.interfaces.contains_key(name));
        let logical = ports().filter(|(_, (_, row))| {
            let mut interfaces = row.interfaces.values();
            interfaces.any(|interface| interface.iface_id.as_deref() == Some(name))
        });
        let mut found: Vec<_> = named.collect();
        if found.is_empty() {
            found = logical.collect();
        }
        match found.as_slice() {
            [((bridge, bridge_row), (port, row))] => Ok(Self {
                bridge: (*bridge).clone(),
                bridge_row: *bridge_row,
                port: (*port).clone(),
                port_row: row.uuid,
                mtu: row.interfaces.values().filter_map(|one| one.mtu).max(),
            }),
            [] => Err(Refusal::new(
                StatusCode::NOT_FOUND,
                format!(
                    "no interface is called {name:?}, and none is for such a logical port: \
                     /v1/bridges lists them"
                ),
            )),
            several => {
                let names: Vec<&str> = several.iter().map(|(_, (port, _))| port.as_str()).collect();
                Err(Refusal::new(
                    StatusCode::CONFLICT,
                    format!(
                        "{name:?} may be any of {}: name one of these",
                        names.join(", ")
                    ),
                ))
            }
        }
    }
}

/// Adds a port of our own, and a mirror from the target to it; and asks for the number of that
/// configuration.
fn place(target: &Target, device: &str, mark: &str) -> Vec<Operation> {
    let marked = || Value::string_map([(CAPTURE_MARK, mark)]);
    let named = |name: &str| Atom::Named(name.to_owned());
    let insert = |table: &str, name: &str, row: Row| Operation::Insert {
        table: table.to_owned(),
        row,
        uuid_name: Some(name.to_owned()),
    };
    let mut interface = Row::new()
        .with("name", device)
        .with("type", "internal")
        .with("external_ids", marked());
    // Larger packets than its own would not get through it.
    if let Some(mtu) = target.mtu.filter(|mtu| *mtu > 1500) {
        interface = interface.with("mtu_request", mtu);
    }
    vec![
        // A mirror of a port that is gone would be one of nothing.
        Operation::Wait {
            table: "Port".to_owned(),
            conditions: vec![Condition::row(target.port_row)],
            columns: vec!["name".to_owned()],
            until: Until::Equal,
            rows: vec![Row::new().with("name", target.port.as_str())],
            timeout: 0,
        },
        insert("Interface", "interface", interface),
        insert(
            "Port",
            "port",
            Row::new()
                .with("name", device)
                .with("interfaces", named("interface"))
                .with("external_ids", marked()),
        ),
        insert(
            "Mirror",
            "mirror",
            Row::new()
                .with("name", device)
                .with("select_src_port", target.port_row)
                .with("select_dst_port", target.port_row)
                .with("output_port", named("port"))
                .with("external_ids", marked()),
        ),
        Operation::Mutate {
            table: "Bridge".to_owned(),
            conditions: vec![Condition::row(target.bridge_row)],
            mutations: vec![
                Mutation::new("ports", Mutator::Insert, named("port")),
                Mutation::new("mirrors", Mutator::Insert, named("mirror")),
            ],
        },
        next_configuration(),
        Operation::Select {
            table: "Open_vSwitch".to_owned(),
            conditions: Vec::new(),
            columns: Some(vec!["next_cfg".to_owned()]),
        },
    ]
}

/// What a failed transaction means to who asked.
fn refused(error: &Error, target: &Target) -> Refusal {
    match error {
        Error::Ovsdb { error, .. } if error.error == "timed out" => Refusal::new(
            StatusCode::NOT_FOUND,
            format!("port {} has just gone", target.port),
        ),
        error if error.is_timeout() => Refusal::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!("ovsdb-server does not answer: {}", chain(error)),
        ),
        error => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("ovsdb-server did not take it: {}", chain(error)),
        ),
    }
}

/// Opens the socket on our port.
fn listen(device: &str, wanted: &Wanted) -> Result<PacketSocket, Refusal> {
    let refuse = |error: &std::io::Error| {
        let text = if error.kind() == std::io::ErrorKind::PermissionDenied {
            packets::MISSING.to_owned()
        } else {
            format!("the kernel does not let {device} be listened to: {error}")
        };
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
    };
    let found: Option<LinkAddr> = packets::device(device).map_err(|error| refuse(&error))?;
    let found = found.ok_or_else(|| {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "ovs-vswitchd has made {device} and it is not here: captures need the network of \
                 the host (hostNetwork in the chart)"
            ),
        )
    })?;
    packets::set_up(&found).map_err(|error| refuse(&error))?;
    PacketSocket::open(found, wanted.snaplen.max(MIN_READ)).map_err(|error| refuse(&error))
}

/// A capture in place.
#[derive(Debug)]
pub struct Started {
    run: Run,
    /// The port that is captured.
    pub port: String,
}

impl Started {
    /// Lets it run, and gives what it captures. Who drops that ends it.
    pub fn stream(self, audit: Audit) -> Body {
        let (sender, receiver) = mpsc::channel(PIECES);
        let end = self.run.stop.clone().drop_guard();
        #[allow(
            clippy::disallowed_methods,
            reason = "it ends with the body, which holds the guard"
        )]
        tokio::spawn(self.run.run(sender, audit));
        Body::from_stream(Pieces {
            receiver,
            _end: end,
        })
    }
}

/// What was captured, piece by piece.
#[derive(Debug)]
struct Pieces {
    receiver: mpsc::Receiver<Bytes>,
    _end: DropGuard,
}

impl Stream for Pieces {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context).map(|piece| piece.map(Ok))
    }
}

/// Why a capture has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Seconds,
    Bytes,
    Packets,
    /// Nobody reads it any more, or the agent ends.
    Stopped,
    /// The port that is captured, the mirror or the device is gone.
    Gone,
}

/// A capture that runs.
#[derive(Debug)]
struct Run {
    socket: PacketSocket,
    device: String,
    port: Uuid,
    switch: watch::Receiver<Option<Arc<Switch>>>,
    wanted: Wanted,
    mark: Mark,
    _slot: OwnedSemaphorePermit,
    metrics: Metrics,
    stop: CancellationToken,
}

/// What has been captured, and what waits to be sent.
#[derive(Debug, Default)]
struct Tally {
    waiting: BytesMut,
    bytes: u64,
    packets: u64,
    dropped: u64,
}

impl Run {
    async fn run(mut self, sender: mpsc::Sender<Bytes>, audit: Audit) {
        let snaplen = u32::try_from(self.wanted.snaplen).unwrap_or(u32::MAX);
        let header = pcap::header(snaplen);
        let mut tally = Tally {
            bytes: u64::try_from(header.len()).unwrap_or(0),
            waiting: BytesMut::from(header.as_slice()),
            ..Tally::default()
        };
        let end = self.capture(&sender, &mut tally).await;
        let lost = self.socket.dropped();
        self.metrics.capture_dropped.inc_by(lost);
        // What ends here is taken away while the client still reads.
        let Self { mark, stop, .. } = self;
        drop(mark);
        if !tally.waiting.is_empty() && end != End::Stopped {
            let rest = sender.send(tally.waiting.split().freeze());
            tokio::select! {
                _ = tokio::time::timeout(LAST, rest) => {}
                () = stop.cancelled() => {}
            }
        }
        let dropped = tally.dropped + lost;
        audit.captured(tally.bytes, tally.packets, dropped, &format!("{end:?}"));
    }

    async fn capture(&mut self, sender: &mpsc::Sender<Bytes>, tally: &mut Tally) -> End {
        let until = Instant::now() + Duration::from_secs(self.wanted.seconds);
        let stop = self.stop.clone();
        loop {
            if let Ok(room) = sender.try_reserve()
                && !tally.waiting.is_empty()
            {
                room.send(tally.waiting.split().freeze());
            }
            let gone = gone(&mut self.switch, self.port, &self.device);
            tokio::select! {
                () = stop.cancelled() => return End::Stopped,
                () = tokio::time::sleep_until(until) => return End::Seconds,
                () = gone => return End::Gone,
                room = sender.reserve(), if !tally.waiting.is_empty() => match room {
                    Ok(room) => room.send(tally.waiting.split().freeze()),
                    Err(_) => return End::Stopped,
                },
                ready = self.socket.ready() => {
                    if ready.is_err() {
                        return End::Gone;
                    }
                    if let Some(end) = self.take(tally) {
                        return end;
                    }
                }
            }
            tokio::task::consume_budget().await;
        }
    }

    /// Takes what is there, up to a batch.
    fn take(&mut self, tally: &mut Tally) -> Option<End> {
        for _ in 0..BATCH {
            let (packet, frame) = match self.socket.take() {
                Ok(Some(taken)) => taken,
                Ok(None) => continue,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return Some(End::Gone),
            };
            let filter = self.wanted.filter.as_ref();
            if filter.is_some_and(|filter| !filter.keeps(frame)) {
                continue;
            }
            // The client does not keep up.
            if tally.waiting.len() >= PIECE {
                tally.dropped += 1;
                self.metrics.capture_dropped.inc();
                continue;
            }
            let kept = frame.get(..self.wanted.snaplen).unwrap_or(frame);
            let size = u64::try_from(pcap::RECORD_HEADER + kept.len()).unwrap_or(u64::MAX);
            if tally.bytes.saturating_add(size) > self.wanted.bytes {
                return Some(End::Bytes);
            }
            let long = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
            let header = pcap::record_header(packet.time, long(kept.len()), long(packet.length));
            tally.waiting.extend_from_slice(&header);
            tally.waiting.extend_from_slice(kept);
            tally.bytes += size;
            tally.packets += 1;
            if self
                .wanted
                .packets
                .is_some_and(|most| tally.packets >= most)
            {
                return Some(End::Packets);
            }
        }
        None
    }
}

/// Waits until the port, the mirror or our own port is gone from the switch.
async fn gone(switch: &mut watch::Receiver<Option<Arc<Switch>>>, port: Uuid, device: &str) {
    let lost = |seen: &Option<Arc<Switch>>| {
        seen.as_ref().is_some_and(|seen| {
            let mut ports = seen
                .bridges
                .values()
                .flat_map(|bridge| bridge.ports.values());
            !seen.captures.contains_key(device)
                || !seen.mirrors.contains(device)
                || !ports.any(|row| row.uuid == port)
        })
    };
    if switch.wait_for(lost).await.is_err() {
        // Nobody looks at the switch any more: the agent ends, and says so in another way.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::tests::{healthy, port, tap, with_switch};

    fn find(name: &str) -> Result<(String, String), StatusCode> {
        let snapshot = with_switch(healthy(), |switch| {
            let bridge = switch.bridges.get_mut("br-int").unwrap();
            for (name, id) in [("tap8", "moving"), ("tap9", "moving")] {
                let (name, port) = port(name, tap(8, id));
                bridge.ports.insert(name, port);
            }
        });
        let found = Target::find(&snapshot.switch.unwrap(), name);
        found
            .map(|target| (target.bridge, target.port))
            .map_err(|refusal| refusal.status)
    }

    #[test]
    fn what_is_captured_is_found_by_any_of_its_names() {
        let found = |bridge: &str, port: &str| Ok((bridge.to_owned(), port.to_owned()));
        assert_eq!(find("tap1"), found("br-int", "tap1"));
        assert_eq!(find("vm1"), found("br-int", "tap1"));
        // A bond is mirrored as a whole.
        assert_eq!(find("bond0"), found("br-provider", "bond0"));
        assert_eq!(find("eno2"), found("br-provider", "bond0"));
        assert_eq!(find("nobody"), Err(StatusCode::NOT_FOUND));
        assert_eq!(find("moving"), Err(StatusCode::CONFLICT));
        assert_eq!(find("tap9"), found("br-int", "tap9"));
    }

    #[test]
    fn names_of_devices_fit_the_kernel() {
        assert!(format!("{CAPTURE_DEVICE}1999").len() <= 15);
    }
}
