//! Records the packets of an interface: a pcap in a file, or in a pipe to Wireshark.
//!
//! Whatever ends it - a limit, Ctrl-C, a lost connection, a full disk - what was written ends with a
//! whole packet.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Seek, Write as _, stderr, stdout};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use http::Method;
use http_body_util::BodyExt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::TargetArgs;
use super::agent::{Agent, Answer, query};
use super::pcap::{HEADER, NotPcap, Stream};
use crate::output::{Format, OutputArgs};

/// How often the progress is told, and a reader that has gone is looked for.
const TICK: Duration = Duration::from_millis(500);
/// How much longer than its time a capture may take to end.
const GRACE: Duration = Duration::from_secs(15);
/// The time that a capture has if the agent does not say which: more than any agent grants.
const LONGEST: u64 = 3600;
/// Pieces that wait for a slow reader; then the agent waits.
const QUEUE: usize = 16;

const USAGE: u8 = 2;
const CUT_SHORT: u8 = 3;

const HELP: &str = "\
Examples:
  # Ten seconds of what goes through a port, into a file
  cobalt ovs capture hv1 tap0 -w tap0.pcap --seconds 10

  # Live, in Wireshark; Ctrl-C ends it
  cobalt ovs capture hv1 tap0 -w - | wireshark -k -i -

  # By the id of a Neutron port, only what belongs to DHCP or ARP
  cobalt ovs capture hv1 0f8b2d5e-6f0a-4d6e-9a51-3c1f8c1d2e3f 'arp or port 67 or port 68' | tcpdump -nr -

Filters are a part of those that tcpdump knows: arp, ip, ip6, icmp, icmp6, tcp, udp, sctp,
[src|dst] host A, [src|dst] net A/LEN, [src|dst] port N, ether [src|dst] host MAC, vlan [N],
and, or, not, parentheses.

Exit codes:
  0  it ended at a limit, by Ctrl-C, or because its reader has gone; what was written is whole
  1  nothing could be captured, or it could not be written
  2  wrong usage
  3  cut short: the agent has gone; what came until then is written, and whole";

/// Flags of `cobalt ovs capture`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct CaptureArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The interface: its name in the switch, or its iface-id (the id of a Neutron port)
    interface: String,
    /// Only packets that match; all words make one filter
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Where to: a file, or - for a pipe. Needed unless the output is a pipe
    #[arg(long, short, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Overwrite the file if there is one
    #[arg(long, requires = "write")]
    force: bool,
    /// End after this time; the agent's default is 30
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// End when so many bytes have been captured; the agent's default is 16 MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    bytes: Option<u64>,
    /// End after so many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Keep so many bytes of each packet
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    snaplen: Option<u32>,
    /// What came of it: text, or one JSON document, for which the packets have to go to a file
    #[command(flatten)]
    output: OutputArgs,
}

impl CaptureArgs {
    fn path(&self) -> String {
        let numbers = [
            ("seconds", self.seconds.map(u64::from)),
            ("bytes", self.bytes),
            ("packets", self.packets),
            ("snaplen", self.snaplen.map(u64::from)),
        ];
        let numbers: Vec<(&str, String)> = numbers
            .into_iter()
            .filter_map(|(name, number)| Some((name, number?.to_string())))
            .collect();
        let mut asked = vec![("interface", self.interface.as_str())];
        asked.extend(
            numbers
                .iter()
                .map(|(name, number)| (*name, number.as_str())),
        );
        let filter = self.filter.join(" ");
        if !filter.trim().is_empty() {
            asked.push(("filter", &filter));
        }
        query("/v1/capture", &asked)
    }
}

/// Where packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Destination {
    Pipe,
    File(PathBuf),
}

/// Where they go, or why they cannot.
fn destination(write: Option<&Path>, is_terminal: bool) -> Result<Destination, &'static str> {
    match write {
        Some(path) if path != Path::new("-") => Ok(Destination::File(path.to_owned())),
        _ if is_terminal => Err(
            "packets are not for a terminal: write them to a file with -w FILE, or pipe them, as \
             in `cobalt ovs capture NODE INTERFACE -w - | wireshark -k -i -`",
        ),
        _ => Ok(Destination::Pipe),
    }
}

/// Captures.
pub async fn run(arguments: CaptureArgs) -> Result<ExitCode> {
    let to = match destination(arguments.write.as_deref(), stdout().is_terminal()) {
        Ok(to) => to,
        Err(why) => {
            eprintln!("error: {why}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let format = arguments.output.output;
    if format == Format::Json && to == Destination::Pipe {
        eprintln!(
            "error: the output has the packets: write them to a file with -w FILE for -o json"
        );
        return Ok(ExitCode::from(USAGE));
    }
    // What cannot be written is found before anything is captured.
    if let Destination::File(path) = &to {
        check(path, arguments.force)?;
    }
    let path = arguments.path();
    let (force, packets) = (arguments.force, arguments.packets);
    let interface = arguments.interface.clone();
    let place = arguments.target.place().await?;
    let node = place.ovs_node().await?;
    let mut agent = Agent::new(place, &node);
    let answer = agent.ask(Method::POST, &path).await?;
    let limits = Limits::of(&answer, packets);
    let (ending, tally) = record(answer, &to, force, limits).await?;
    let told = match ending {
        Ending::Limit => limits.reached(&tally, tally.begin.elapsed()).to_owned(),
        _ => ending.to_string(),
    };
    let code = ending.code();
    let into = match &to {
        Destination::Pipe => String::new(),
        Destination::File(path) => format!(" in {}", path.display()),
    };
    eprintln!("{}{into}; {told}", tally.tell());
    format.document(&json!({
        "node": node.metadata.name,
        "interface": interface,
        "file": arguments.write,
        "packets": tally.packets,
        "bytes": tally.bytes,
        "isWhole": code == 0,
        "message": told,
    }))?;
    Ok(ExitCode::from(code))
}

/// Whether a file may be written.
fn check(path: &Path, force: bool) -> Result<()> {
    let there = match std::fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("failed to look at {}", path.display()));
        }
    };
    if !there.is_file() {
        bail!(
            "{} is no file; `-w -` writes to where the output goes",
            path.display()
        );
    }
    if !force {
        bail!(
            "{} is there already: take another name, or overwrite it with --force",
            path.display()
        );
    }
    Ok(())
}

/// The limits that the agent has put on a capture.
#[derive(Clone, Copy, Debug)]
struct Limits {
    time: Option<Duration>,
    bytes: Option<u64>,
    packets: Option<u64>,
}

impl Limits {
    fn of(answer: &Answer, packets: Option<u64>) -> Self {
        let number = |name: &str| {
            let value = answer.headers.get(name)?.to_str().ok()?;
            value.parse::<u64>().ok()
        };
        Self {
            time: number("x-capture-seconds")
                .map(|seconds| Duration::from_secs(seconds.min(LONGEST))),
            bytes: number("x-capture-bytes"),
            packets,
        }
    }

    /// Why an agent has ended a capture, as far as it can be seen from here.
    fn reached(&self, tally: &Tally, elapsed: Duration) -> &'static str {
        if self.packets.is_some_and(|packets| tally.packets >= packets) {
            return "that is how many were asked for";
        }
        // The agent began a little earlier.
        if self
            .time
            .is_some_and(|time| elapsed + Duration::from_secs(1) >= time)
        {
            return "its time is over";
        }
        "the agent has ended it: at the limit of bytes, or because the interface has gone or the \
         agent stops"
    }
}

/// How a capture ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Ending {
    #[error("the agent has ended it")]
    Limit,
    #[error("ended as you wished")]
    Interrupted,
    #[error("its reader has gone")]
    ReaderGone,
    #[error("cut short: the connection to the agent was lost; see whether it runs")]
    Lost,
    #[error("cut short: the time is over and the agent has not ended it")]
    Overdue,
    #[error("cut short: what the agent sends is no pcap any more: {0}")]
    Garbled(NotPcap),
}

impl Ending {
    fn code(self) -> u8 {
        match self {
            Self::Limit | Self::Interrupted | Self::ReaderGone => 0,
            Self::Lost | Self::Overdue | Self::Garbled(_) => CUT_SHORT,
        }
    }
}

/// What has been captured.
#[derive(Clone, Copy, Debug)]
struct Tally {
    packets: u64,
    bytes: u64,
    begin: Instant,
}

impl Tally {
    fn tell(&self) -> String {
        let packets = match self.packets {
            1 => "1 packet".to_owned(),
            packets => format!("{packets} packets"),
        };
        format!("{packets}, {}", size(self.bytes))
    }

    /// How far it is, in one line.
    fn progress(&self, limits: Limits, now: Instant) -> String {
        let mut out = self.tell();
        if let Some(bytes) = limits.bytes {
            write!(out, " of {}", size(bytes)).ok();
        }
        if let Some(time) = limits.time {
            let left = time.saturating_sub(now.duration_since(self.begin));
            write!(out, ", {} s left", left.as_secs()).ok();
        }
        out + "; Ctrl-C ends it"
    }
}

fn size(bytes: u64) -> String {
    let (unit, shift) = match bytes {
        0..0x400 => return format!("{bytes} B"),
        0x400..0x10_0000 => ("KiB", 10),
        0x10_0000..0x4000_0000 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    let tenths = (u128::from(bytes) * 10) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// The line on a terminal that is written anew in place.
struct Progress {
    is_shown: bool,
}

impl Progress {
    fn open() -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            is_shown: stderr().is_terminal() && !is_dumb,
        }
    }

    fn draw(&self, text: &str) {
        if self.is_shown {
            let mut out = stderr().lock();
            write!(out, "\r{text}\x1b[K").ok();
            out.flush().ok();
        }
    }
}

/// Ctrl-C, or a request to end.
struct Wishes {
    interrupts: Signal,
    terminations: Signal,
}

impl Wishes {
    fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for Ctrl-C");
        Ok(Self {
            interrupts: listen(SignalKind::interrupt())?,
            terminations: listen(SignalKind::terminate())?,
        })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.interrupts.recv() => {}
            _ = self.terminations.recv() => {}
        }
    }
}

/// Who writes: a thread of its own that nobody has to wait for, because a reader may stop reading.
struct Writer {
    queue: mpsc::Sender<Bytes>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Writer {
    fn start(mut target: Target) -> Self {
        let (queue, mut pieces) = mpsc::channel::<Bytes>(QUEUE);
        let (tell, done) = oneshot::channel();
        std::thread::spawn(move || {
            let mut written = Ok(());
            while let Some(piece) = pieces.blocking_recv() {
                written = target.write(&piece);
                if written.is_err() {
                    break;
                }
            }
            // Nobody is left to hear it if the person could not wait.
            tell.send(written).ok();
        });
        Self { queue, done }
    }
}

/// Where pieces are written.
enum Target {
    /// What is in a pipe cannot be taken back.
    Pipe(File),
    File(File),
}

impl Target {
    /// Opens it. A file that has appeared meanwhile is not overwritten, and one that is to be
    /// overwritten is only emptied now that there is something to write.
    fn open(to: &Destination, force: bool) -> Result<Self> {
        let path = match to {
            Destination::Pipe => {
                let out = stdout().as_fd().try_clone_to_owned();
                let out = out.context("failed to use the output")?;
                return Ok(Self::Pipe(out.into()));
            }
            Destination::File(path) => path,
        };
        check(path, force)?;
        let mut options = OpenOptions::new();
        options.write(true);
        if force {
            options.create(true).truncate(true);
        } else {
            options.create_new(true);
        }
        let opened = options.open(path);
        let opened = opened.with_context(|| format!("failed to make {}", path.display()))?;
        Ok(Self::File(opened))
    }

    /// Writes a piece; to a file whole, or not at all.
    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let file = match self {
            Self::Pipe(pipe) => return pipe.write_all(piece),
            Self::File(file) => file,
        };
        let mut begin = file.stream_position()?;
        // The header makes a capture of it, whatever becomes of the packets.
        let header = if begin == 0 { HEADER } else { 0 };
        let (header, packets) = piece.split_at_checked(header).unwrap_or((piece, &[]));
        for part in [header, packets] {
            if let Err(error) = file.write_all(part) {
                // A full disk leaves half a packet, unless it is taken away.
                file.set_len(begin).ok();
                return Err(error);
            }
            begin += part.len() as u64;
        }
        Ok(())
    }
}

/// Whether the other end of the pipe is closed.
fn reader_has_gone() -> bool {
    let out = stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR))
}

/// Writes what comes until it ends.
async fn record(
    answer: Answer,
    to: &Destination,
    force: bool,
    limits: Limits,
) -> Result<(Ending, Tally)> {
    let mut wishes = Wishes::listen()?;
    let mut recording = Recording {
        to,
        force,
        stream: Stream::default(),
        writer: None,
        tally: Tally {
            packets: 0,
            bytes: 0,
            begin: Instant::now(),
        },
    };
    // It takes the connection with it: then the agent takes its mirror away.
    let ending = recording.take(answer, limits, &mut wishes).await?;
    let tally = recording.tally;
    Ok((recording.close(ending, &mut wishes).await?, tally))
}

/// What is being recorded.
struct Recording<'a> {
    to: &'a Destination,
    force: bool,
    stream: Stream,
    /// It begins with the first thing that there is to write.
    writer: Option<Writer>,
    /// What the writer was given.
    tally: Tally,
}

impl Recording<'_> {
    /// Hands to the writer what comes, until something ends it.
    async fn take(
        &mut self,
        answer: Answer,
        limits: Limits,
        wishes: &mut Wishes,
    ) -> Result<Ending> {
        let Answer {
            mut body,
            connection: _connection,
            ..
        } = answer;
        let progress = Progress::open();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let time = limits.time.unwrap_or(Duration::from_secs(LONGEST));
        let mut overdue = std::pin::pin!(tokio::time::sleep(time + GRACE));
        // What waits for the writer, and what comes after that.
        let mut piece: Option<Bytes> = None;
        let mut end: Option<Ending> = None;
        let ending = loop {
            if piece.is_none()
                && let Some(end) = end
            {
                break end;
            }
            let queue = self.writer.as_ref().map(|writer| writer.queue.clone());
            tokio::select! {
                frame = body.frame(), if piece.is_none() => match frame {
                    None => end = Some(Ending::Limit),
                    Some(Err(_)) => end = Some(Ending::Lost),
                    Some(Ok(frame)) => {
                        // What is no data are headers after the body, which say nothing to us.
                        let data = frame.into_data().unwrap_or_default();
                        let (whole, good) = self.stream.push(&data);
                        end = good.err().map(Ending::Garbled);
                        if !whole.is_empty() {
                            self.open()?;
                            piece = Some(whole);
                        }
                    }
                },
                room = reserve(queue), if piece.is_some() => match (room, piece.take()) {
                    (Some(room), Some(piece)) => {
                        self.tally.bytes += piece.len() as u64;
                        self.tally.packets = self.stream.packets();
                        room.send(piece);
                    }
                    // The writer has stopped, and says why when all is closed.
                    _ => break Ending::ReaderGone,
                },
                () = stopped(self.writer.as_ref()) => break Ending::ReaderGone,
                _ = tick.tick() => {
                    progress.draw(&self.tally.progress(limits, Instant::now()));
                    if *self.to == Destination::Pipe && reader_has_gone() {
                        break Ending::ReaderGone;
                    }
                }
                () = wishes.end() => break Ending::Interrupted,
                () = &mut overdue => break Ending::Overdue,
            }
        };
        progress.draw("");
        Ok(ending)
    }

    fn open(&mut self) -> Result<()> {
        if self.writer.is_none() {
            self.writer = Some(Writer::start(Target::open(self.to, self.force)?));
        }
        Ok(())
    }

    /// Waits until everything is written. Returns how it ended indeed.
    async fn close(self, ending: Ending, wishes: &mut Wishes) -> Result<Ending> {
        let Some(Writer { queue, done }) = self.writer else {
            return match ending {
                // There is nothing that would be a capture.
                Ending::Garbled(why) => bail!(
                    "the answer of the agent is no capture: {why}; see whether this command and \
                     the agent are of the same version"
                ),
                Ending::Limit | Ending::Lost | Ending::Overdue => bail!(
                    "the agent has gone before the capture began; see whether it runs, and try \
                     again"
                ),
                Ending::Interrupted => bail!("ended before the capture began: nothing was written"),
                Ending::ReaderGone => Ok(ending),
            };
        };
        drop(queue);
        let done = tokio::select! {
            done = done => done.unwrap_or(Ok(())),
            // Who wishes it twice does not want to wait for a reader that has stopped.
            () = wishes.end() => return Ok(Ending::Interrupted),
        };
        match done {
            Err(error)
                if *self.to == Destination::Pipe && error.kind() == ErrorKind::BrokenPipe =>
            {
                Ok(Ending::ReaderGone)
            }
            Err(error) => Err(error).context(
                "failed to write the capture; what stands there is whole, but it is not all of it",
            ),
            Ok(()) => Ok(whole(ending, &self.stream)),
        }
    }
}

/// An end in the middle of a packet is none that the agent has wished.
fn whole(ending: Ending, stream: &Stream) -> Ending {
    match ending {
        Ending::Limit if stream.is_cut() => Ending::Lost,
        ending => ending,
    }
}

/// Waits until the writer has stopped, which it does by itself only if it cannot write.
async fn stopped(writer: Option<&Writer>) {
    match writer {
        Some(writer) => writer.queue.closed().await,
        None => std::future::pending().await,
    }
}

/// Room for a piece, or nothing if the writer has ended.
async fn reserve(queue: Option<mpsc::Sender<Bytes>>) -> Option<mpsc::OwnedPermit<Bytes>> {
    queue?.reserve_owned().await.ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        arguments: CaptureArgs,
    }

    fn parse(words: &[&str]) -> CaptureArgs {
        let all = std::iter::once("capture").chain(words.iter().copied());
        Program::try_parse_from(all).unwrap().arguments
    }

    #[test]
    fn what_is_wished_is_asked() {
        let cases: [(&[&str], &str); 4] = [
            (&["hv1", "tap0"], "/v1/capture?interface=tap0"),
            (
                &[
                    "hv1",
                    "tap0",
                    "--seconds",
                    "5",
                    "--bytes",
                    "1000",
                    "--packets",
                    "3",
                ],
                "/v1/capture?interface=tap0&seconds=5&bytes=1000&packets=3",
            ),
            (
                &[
                    "hv1",
                    "tap0",
                    "icmp",
                    "and",
                    "--snaplen",
                    "96",
                    "host",
                    "10.0.0.1",
                ],
                "/v1/capture?interface=tap0&snaplen=96&filter=icmp%20and%20host%2010.0.0.1",
            ),
            (
                &["hv1", "a/b", "! (tcp || udp)", "-w", "x"],
                "/v1/capture?interface=a%2Fb&filter=%21%20%28tcp%20%7C%7C%20udp%29",
            ),
        ];
        for (words, expected) in cases {
            assert_eq!(parse(words).path(), expected);
        }
    }

    #[test]
    fn a_terminal_gets_no_packets() {
        let file = Some(Path::new("x.pcap"));
        let pipe = Some(Path::new("-"));
        assert!(destination(None, true).unwrap_err().contains("-w FILE"));
        assert!(destination(pipe, true).unwrap_err().contains("wireshark"));
        assert_eq!(destination(None, false), Ok(Destination::Pipe));
        assert_eq!(destination(pipe, false), Ok(Destination::Pipe));
        for is_terminal in [false, true] {
            let expected = Destination::File("x.pcap".into());
            assert_eq!(destination(file, is_terminal), Ok(expected));
        }
    }

    #[test]
    fn sizes_are_short() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1023.9 KiB"),
            (16 << 20, "16.0 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "17179869183.9 GiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn progress_is_a_line() {
        let begin = Instant::now();
        let tally = Tally {
            packets: 1,
            bytes: 2048,
            begin,
        };
        let limits = |time: Option<u64>, bytes| Limits {
            time: time.map(Duration::from_secs),
            bytes,
            packets: Some(2),
        };
        let now = begin + Duration::from_secs(12);
        let cases = [
            (limits(None, None), "1 packet, 2.0 KiB; Ctrl-C ends it"),
            (
                limits(Some(30), Some(16 << 20)),
                "1 packet, 2.0 KiB of 16.0 MiB, 18 s left; Ctrl-C ends it",
            ),
            (
                limits(Some(5), None),
                "1 packet, 2.0 KiB, 0 s left; Ctrl-C ends it",
            ),
        ];
        for (limits, expected) in cases {
            assert_eq!(tally.progress(limits, now), expected);
        }
    }

    #[test]
    fn the_limit_that_was_reached_is_told() {
        let limits = Limits {
            time: Some(Duration::from_secs(30)),
            bytes: Some(1000),
            packets: Some(3),
        };
        let cases = [
            (3, 1, "asked for"),
            (2, 29, "time is over"),
            (2, 12, "limit of bytes"),
        ];
        for (packets, seconds, expected) in cases {
            let tally = Tally {
                packets,
                bytes: 0,
                begin: Instant::now(),
            };
            let told = limits.reached(&tally, Duration::from_secs(seconds));
            assert!(told.contains(expected), "{told}");
        }
    }

    #[test]
    fn every_ending_has_its_code() {
        let cases = [
            (Ending::Limit, 0),
            (Ending::Interrupted, 0),
            (Ending::ReaderGone, 0),
            (Ending::Lost, CUT_SHORT),
            (Ending::Overdue, CUT_SHORT),
            (Ending::Garbled(NotPcap::TooLong(1)), CUT_SHORT),
        ];
        for (ending, expected) in cases {
            assert_eq!(ending.code(), expected, "{ending:?}");
        }
        let mut stream = Stream::default();
        assert_eq!(whole(Ending::Limit, &stream), Ending::Limit);
        assert_eq!(stream.push(&[0xd4]).1, Ok(()));
        assert_eq!(whole(Ending::Limit, &stream), Ending::Lost);
        assert_eq!(whole(Ending::Interrupted, &stream), Ending::Interrupted);
    }

    #[test]
    fn a_file_is_overwritten_by_force_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pcap");
        check(&path, false).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let error = check(&path, false).unwrap_err().to_string();
        assert!(error.contains("--force"), "{error}");
        check(&path, true).unwrap();
        // To look at it is not to touch it.
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let to = Destination::File(path.clone());
        assert!(Target::open(&to, false).is_err());
        let mut target = Target::open(&to, true).unwrap();
        target.write(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        let error = check(dir.path(), true).unwrap_err().to_string();
        assert!(error.contains("no file"), "{error}");
    }
}
