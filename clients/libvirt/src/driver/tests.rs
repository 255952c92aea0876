//! The task against a fake peer that does exactly what each test wants.

use std::time::Duration;

use cobalt_wire::Keepalive;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::connection::{Client, Connection};
use crate::driver::Order;
use crate::error::{Closed, Error};
use crate::event::{Event, EventKind};
use crate::flags::{ListDomains, StatsGroups};
use crate::message::{FrameError, Framer, Header, KEEPALIVE, Kind, REMOTE};
use crate::options::Options;
use crate::procedure::{EVENT_DEREGISTER, EVENT_REGISTER};
use crate::xdr::{Reader, Writer, XdrError};

/// A fake libvirt: it says what it is told to.
struct Peer {
    stream: DuplexStream,
    framer: Framer,
}

impl Peer {
    /// The next message, with its payload.
    async fn next(&mut self) -> (Header, Vec<u8>) {
        loop {
            if let Some((header, payload)) = self.framer.next().unwrap() {
                return (header, payload.to_vec());
            }
            let read = self.stream.read_buf(self.framer.space()).await.unwrap();
            assert_ne!(read, 0, "the client has closed the connection");
        }
    }

    async fn next_call(&mut self, procedure: i32) -> (Header, Vec<u8>) {
        let (header, payload) = self.next().await;
        assert_eq!((header.kind, header.procedure), (Kind::Call, procedure));
        (header, payload)
    }

    /// Nothing comes, as far as anybody can tell without waiting.
    async fn hears_nothing(&mut self) {
        let waiting = tokio::time::timeout(Duration::from_millis(50), self.next()).await;
        assert!(waiting.is_err(), "{:?}", waiting.unwrap());
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn answer(&mut self, call: &Header, payload: Writer) {
        self.send(&reply(call, payload)).await;
    }
}

fn reply(call: &Header, payload: Writer) -> Vec<u8> {
    let header = Header {
        kind: Kind::Reply,
        ..*call
    };
    header.frame(&payload.into_bytes())
}

fn event(procedure: i32, payload: Writer) -> Vec<u8> {
    let header = Header {
        program: REMOTE,
        procedure,
        kind: Kind::Event,
        serial: 0,
        failed: false,
    };
    header.frame(&payload.into_bytes())
}

fn reboot(callback: i32, name: &str) -> Vec<u8> {
    let domain = crate::Domain {
        name: name.to_owned(),
        uuid: uuid::Uuid::nil(),
        id: None,
    };
    event(319, Writer::new().i32(callback).domain(&domain))
}

fn options() -> Options {
    Options {
        call_timeout: Duration::from_secs(5),
        ..Options::default()
    }
}

/// A connection that is past its introduction.
fn connect(options: &Options) -> (Connection, Peer) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (input, output) = tokio::io::split(ours);
    let client = Client::start(Box::new(input), Box::new(output), options);
    let peer = Peer {
        stream: theirs,
        framer: Framer::new(options.max_message),
    };
    (Connection::introduced(client), peer)
}

fn closed<T: std::fmt::Debug>(answer: Result<T, Error>) -> Closed {
    match answer {
        Err(Error::Closed(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn answers_find_their_questions_in_any_order() {
    let (libvirt, mut peer) = connect(&options());
    let asking = async { tokio::join!(libvirt.hostname(), libvirt.capabilities()) };
    let answering = async {
        let (first, _) = peer.next().await;
        let (second, _) = peer.next().await;
        peer.answer(&second, Writer::new().string("second")).await;
        // One that nobody has asked for is between them.
        let stranger = Header {
            serial: 99,
            ..first
        };
        peer.answer(&stranger, Writer::new().string("stranger"))
            .await;
        peer.answer(&first, Writer::new().string("first")).await;
    };
    let ((hostname, capabilities), ()) = tokio::join!(asking, answering);
    assert_eq!(hostname.unwrap(), "first");
    assert_eq!(capabilities.unwrap(), "second");
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_another_question_is_an_error_of_that_call_alone() {
    let (libvirt, mut peer) = connect(&options());
    let answering = async {
        let (call, _) = peer.next_call(59).await;
        let wrong = Header {
            procedure: 7,
            ..call
        };
        peer.answer(&wrong, Writer::new().string("what")).await;
        let (call, _) = peer.next_call(59).await;
        peer.answer(&call, Writer::new().string("hv1")).await;
    };
    let asking = async {
        let wrong = libvirt.hostname().await;
        assert!(
            matches!(
                &wrong,
                Err(Error::Protocol {
                    problem: XdrError::Mismatch,
                    ..
                })
            ),
            "{wrong:?}"
        );
        assert_eq!(libvirt.hostname().await.unwrap(), "hv1");
    };
    tokio::join!(asking, answering);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_turn_is_not_sent_when_nobody_wants_it_any_more() {
    let options = Options {
        max_in_flight: 1,
        ..options()
    };
    let (libvirt, mut peer) = connect(&options);
    let first = tokio::spawn({
        let libvirt = libvirt.clone();
        async move { libvirt.hostname().await }
    });
    let (call, _) = peer.next_call(59).await;
    let second = tokio::spawn({
        let libvirt = libvirt.clone();
        async move { libvirt.capabilities().await }
    });
    peer.hears_nothing().await;
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    let third = tokio::spawn({
        let libvirt = libvirt.clone();
        async move { libvirt.driver_type().await }
    });
    peer.hears_nothing().await;
    peer.answer(&call, Writer::new().string("hv1")).await;
    assert_eq!(first.await.unwrap().unwrap(), "hv1");
    let (call, _) = peer.next_call(3).await;
    peer.answer(&call, Writer::new().string("QEMU")).await;
    assert_eq!(third.await.unwrap().unwrap(), "QEMU");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_ignored_and_makes_room_for_the_next_call() {
    let options = Options {
        max_in_flight: 1,
        ..options()
    };
    let (libvirt, mut peer) = connect(&options);
    let late = libvirt.hostname().await.unwrap_err();
    assert!(late.is_timeout(), "{late}");
    assert_eq!(
        late.to_string(),
        "libvirt did not answer within 5s (get hostname)"
    );
    let (call, _) = peer.next_call(59).await;
    // It is still busy with the first one: the second waits, and then was never sent.
    assert!(libvirt.capabilities().await.unwrap_err().is_timeout());
    peer.answer(&call, Writer::new().string("late")).await;
    let answering = async {
        let (call, _) = peer.next_call(3).await;
        peer.answer(&call, Writer::new().string("QEMU")).await;
    };
    let (kind, ()) = tokio::join!(libvirt.driver_type(), answering);
    assert_eq!(kind.unwrap(), "QEMU");
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_asked_and_given_up() {
    let (libvirt, mut peer) = connect(&options());
    let keepalive = Keepalive {
        interval: Duration::from_secs(5),
        count: 2,
    };
    libvirt.client.order(Order::Watch(keepalive)).await;
    let pong = Header {
        program: KEEPALIVE,
        procedure: 2,
        kind: Kind::Event,
        serial: 0,
        failed: false,
    };
    // As long as it answers, it may be as quiet as it likes.
    for _ in 0..10 {
        let (ping, _) = peer.next().await;
        assert_eq!((ping.program, ping.procedure), (KEEPALIVE, 1));
        peer.send(&pong.frame(&[])).await;
    }
    let patient = libvirt.with_call_timeout(Duration::from_secs(3600));
    let why = closed(patient.hostname().await);
    assert_eq!(
        why,
        Closed::Keepalive {
            interval: keepalive.interval,
            count: 2
        }
    );
    assert_eq!(libvirt.closed().await, why);
    assert!(!libvirt.is_alive());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_asks_whether_we_are_there_gets_an_answer() {
    let (libvirt, mut peer) = connect(&options());
    let ping = Header {
        program: KEEPALIVE,
        procedure: 1,
        kind: Kind::Event,
        serial: 0,
        failed: false,
    };
    peer.send(&ping.frame(&[])).await;
    let (pong, _) = peer.next().await;
    assert_eq!(
        (pong.program, pong.procedure, pong.kind),
        (KEEPALIVE, 2, Kind::Event)
    );
    assert!(libvirt.is_alive());
}

#[tokio::test(start_paused = true)]
async fn an_event_that_comes_with_the_subscription_is_not_missed() {
    let (libvirt, mut peer) = connect(&options());
    let answering = async {
        let (call, payload) = peer.next_call(EVENT_REGISTER.number).await;
        assert_eq!(Reader::new(&payload).i32(), Ok(1));
        let mut packet = reply(&call, Writer::new().i32(7));
        packet.extend(reboot(7, "first"));
        packet.extend(reboot(8, "of another subscription"));
        packet.extend(event(319, Writer::new().i32(7)));
        packet.extend(event(9999, Writer::new().i32(7)));
        packet.extend(reboot(7, "second"));
        peer.send(&packet).await;
    };
    let (events, ()) = tokio::join!(libvirt.subscribe(&[EventKind::Reboot]), answering);
    let mut events = events.unwrap();
    assert_eq!(events.kinds(), [EventKind::Reboot]);
    let name = |event: Option<Event>| event.unwrap().domain().unwrap().name.clone();
    assert_eq!(name(events.next().await), "first");
    // The one that cannot be read may have been anything.
    assert_eq!(events.next().await, Some(Event::Overflow));
    assert_eq!(name(events.next().await), "second");

    drop(events);
    let (call, payload) = peer.next_call(EVENT_DEREGISTER.number).await;
    assert_eq!(Reader::new(&payload).i32(), Ok(7));
    peer.answer(&call, Writer::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_given_up_half_way_is_ended() {
    let (libvirt, mut peer) = connect(&options());
    let subscribing = tokio::spawn({
        let libvirt = libvirt.clone();
        async move { libvirt.subscribe(&[EventKind::Reboot]).await }
    });
    let (call, _) = peer.next_call(EVENT_REGISTER.number).await;
    subscribing.abort();
    assert!(subscribing.await.unwrap_err().is_cancelled());
    peer.answer(&call, Writer::new().i32(3)).await;
    let (_, payload) = peer.next_call(EVENT_DEREGISTER.number).await;
    assert_eq!(Reader::new(&payload).i32(), Ok(3));
}

#[tokio::test(start_paused = true)]
async fn events_that_libvirt_does_not_know_are_left_out_and_the_stream_ends_with_the_connection() {
    let (libvirt, mut peer) = connect(&options());
    let refusal = |call: &Header| {
        let header = Header {
            kind: Kind::Reply,
            failed: true,
            ..*call
        };
        let error = Writer::new()
            .i32(1)
            .i32(7)
            .optional_string(Some("unsupported event ID 27"))
            .i32(2)
            .bool(false)
            .bool(false)
            .bool(false)
            .bool(false)
            .i32(0)
            .i32(0)
            .bool(false);
        header.frame(&error.into_bytes())
    };
    let answering = async {
        let (call, _) = peer.next_call(EVENT_REGISTER.number).await;
        peer.send(&refusal(&call)).await;
    };
    let (events, ()) = tokio::join!(libvirt.subscribe(&[EventKind::NicMacChange]), answering);
    let mut events = events.unwrap();
    assert!(events.kinds().is_empty());
    // It does not look like a lost connection.
    let waiting = tokio::time::timeout(Duration::from_secs(60), events.next()).await;
    assert!(waiting.is_err());
    drop(peer);
    assert_eq!(events.next().await, None);
    assert_eq!(libvirt.closed().await, Closed::Peer);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_not_libvirt_is_told_from_one() {
    let huge = [0xff; 28];
    for (bytes, expected) in [
        (
            &huge[..],
            Closed::Protocol(FrameError::TooLong {
                length: u32::MAX,
                max: options().max_message,
            }),
        ),
        (
            b"\0\0\0\x05hello",
            Closed::Protocol(FrameError::TooShort(5)),
        ),
        (b"\0\0\x01\0half a message", Closed::PeerMidMessage),
        (b"", Closed::Peer),
    ] {
        let (libvirt, mut peer) = connect(&options());
        let answering = async {
            peer.next().await;
            peer.send(bytes).await;
            drop(peer);
        };
        let (answer, ()) = tokio::join!(libvirt.hostname(), answering);
        assert_eq!(closed(answer), expected);
        // The next one is told the same, at once.
        assert_eq!(closed(libvirt.hostname().await), expected);
        assert!(
            libvirt
                .subscribe(&[EventKind::Reboot])
                .await
                .unwrap_err()
                .is_closed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_parameter_of_an_unknown_type_spoils_its_answer_and_nothing_else() {
    let (libvirt, mut peer) = connect(&options());
    let answering = async {
        let (call, _) = peer.next_call(344).await;
        let domain = crate::Domain {
            name: "g1".to_owned(),
            uuid: uuid::Uuid::nil(),
            id: None,
        };
        let stats = Writer::new()
            .u32(1)
            .domain(&domain)
            .u32(1)
            .string("odd")
            .i32(8);
        peer.answer(&call, stats.u64(1)).await;
        let (call, _) = peer.next_call(273).await;
        peer.answer(&call, Writer::new().u32(0).u32(0)).await;
    };
    let asking = async {
        let odd = libvirt.all_stats(StatsGroups::ALL).await.unwrap_err();
        assert!(odd.to_string().contains("unknown value 8"), "{odd}");
        assert!(libvirt.domains(ListDomains::ALL).await.unwrap().is_empty());
    };
    tokio::join!(asking, answering);
}

#[tokio::test(start_paused = true)]
async fn what_is_too_long_is_not_sent() {
    let options = Options {
        max_message: 100,
        ..options()
    };
    let (libvirt, mut peer) = connect(&options);
    let error = libvirt.lookup_by_name(&"x".repeat(100)).await.unwrap_err();
    assert!(matches!(error, Error::BadArgument(_)), "{error}");
    peer.hears_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_closes_and_a_goodbye_does_so_for_all() {
    let (libvirt, mut peer) = connect(&options());
    drop(libvirt.clone());
    peer.hears_nothing().await;
    drop(libvirt);
    assert_eq!(peer.stream.read(&mut [0; 8]).await.unwrap(), 0);

    let (libvirt, mut peer) = connect(&options());
    let clone = libvirt.clone();
    let answering = async {
        let (call, _) = peer.next_call(2).await;
        peer.answer(&call, Writer::new()).await;
    };
    tokio::join!(libvirt.close(), answering);
    assert_eq!(closed(clone.hostname().await), Closed::Local);
}
