//! Fake peers on a real port: what is neither OVSDB nor OpenFlow must not harm.

use std::time::Duration;

use cobalt_ovs::ovsdb::vswitch::{self, Bridge};
use cobalt_ovs::ovsdb::{Connection, Event, Monitor, Tables};
use cobalt_ovs::{Closed, ConnectError, Error, Options, ProtocolError, Remote, openflow};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A fake peer that does this with each connection.
async fn peer<F>(play: impl Fn(TcpStream) -> F + Send + 'static) -> Remote
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            play(stream).await;
        }
    });
    Remote::Tcp("127.0.0.1".to_owned(), port)
}

/// A fake peer that says this whatever it hears, and stays until we go.
async fn saying(bytes: &'static [u8]) -> Remote {
    peer(move |mut stream| async move {
        let mut heard = [0; 8];
        stream.read_exact(&mut heard).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        drop(stream.read_to_end(&mut Vec::new()).await);
    })
    .await
}

fn hasty() -> Options {
    Options {
        connect_timeout: Duration::from_millis(300),
        call_timeout: Duration::from_millis(300),
        max_message: 1000,
        ..Options::default()
    }
}

async fn ask(remote: &Remote) -> Error {
    let ovsdb = Connection::open(remote, &hasty()).await.unwrap();
    ovsdb.databases().await.unwrap_err()
}

#[tokio::test]
async fn a_fake_peer_of_another_protocol_is_told_from_ovsdb() {
    let error = ask(&saying(b"HTTP/1.1 400 Bad Request\r\n\r\n").await).await;
    assert!(error.to_string().contains("may not be JSON-RPC"), "{error}");
    let error = ask(&saying(b"{\"id\":1,\"result\":[1,{]}}").await).await;
    assert!(error.to_string().contains("no JSON-RPC"), "{error}");
    // Deeper than anybody can read.
    let deep = Box::leak(format!("{{\"id\":1,\"result\":{}", "[".repeat(900)).into_boxed_str());
    let error = ask(&saying(deep.as_bytes()).await).await;
    assert!(error.is_timeout(), "{error}");
    let endless = Box::leak(format!("{{\"id\":\"{}", "x".repeat(2000)).into_boxed_str());
    let error = ask(&saying(endless.as_bytes()).await).await;
    assert!(
        error.to_string().contains("longer than the 1000 bytes"),
        "{error}"
    );
}

#[tokio::test]
async fn a_fake_peer_that_answers_nonsense_is_an_error_of_that_call() {
    let error = ask(&saying(b"{\"id\":1,\"error\":null,\"result\":{\"a\":1}}").await).await;
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    let refused = b"{\"id\":1,\"error\":{\"error\":\"resources exhausted\"},\"result\":null}";
    let error = ask(&saying(refused).await).await;
    assert_eq!(error.to_string(), "resources exhausted (list databases)");
    let error = ask(&saying(b"{\"id\":77,\"result\":[],\"error\":null}").await).await;
    assert!(error.is_timeout(), "{error}");
    let error = ask(&peer(|stream| async { drop(stream) }).await).await;
    assert!(error.is_closed(), "{error}");
}

#[tokio::test]
async fn a_fake_peer_that_is_no_switch_is_told_from_one() {
    for (bytes, expected) in [
        (&b"HTTP/1.1 400 Bad Request"[..], "may not be OpenFlow"),
        (&[6, 19, 0, 8, 0, 0, 0, 0], "instead of an answer"),
        (&[6, 0, 0, 3, 0, 0, 0, 0], "3 bytes, which cannot be"),
        (&[1, 0, 0, 8, 0, 0, 0, 0], "1.3, 1.4 and 1.5"),
        (
            &[6, 0, 0, 12, 0, 0, 0, 0, 0, 1, 0, 2],
            "2 bytes, which cannot be",
        ),
    ] {
        let remote = saying(bytes).await;
        let error = openflow::Connection::open(&remote, &hasty())
            .await
            .unwrap_err();
        let expected_kind = matches!(
            error,
            Error::Closed(Closed::Protocol(ProtocolError::OpenFlow(_)))
        );
        assert!(expected_kind || error.is_timeout(), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let remote = saying(&[]).await;
    let error = openflow::Connection::open(&remote, &hasty())
        .await
        .unwrap_err();
    assert!(error.is_timeout(), "{error}");
}

#[tokio::test]
async fn nobody_listens_and_that_is_said_again_and_again() {
    let nowhere: Remote = "unix:/nonexistent/db.sock".parse().unwrap();
    let error = Connection::open(&nowhere, &hasty()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to connect to /nonexistent/db.sock"
    );
    let tables = Tables::new().table::<Bridge>();
    let mut monitor = Monitor::new(vswitch::DATABASE, vec![nowhere], tables, hasty());
    for _ in 0..2 {
        let event = monitor.next().await;
        let Event::Down {
            error, retry_in, ..
        } = event
        else {
            panic!("{event:?}");
        };
        assert!(
            matches!(error, Error::Connect(ConnectError::Unreachable { .. })),
            "{error}"
        );
        assert!(retry_in > Duration::ZERO);
    }
    // Other remotes are tried at once.
    monitor.set_remotes(vec![saying(b"nonsense").await]);
    let Event::Down { error, .. } = monitor.next().await else {
        panic!("a fake is no database");
    };
    assert!(error.is_closed(), "{error}");
    assert_eq!(monitor.rows::<Bridge>().count(), 0);
    monitor.set_remotes(Vec::new());
    let Event::Down {
        remote: None,
        error,
        ..
    } = monitor.next().await
    else {
        panic!("there is nowhere to go");
    };
    assert_eq!(error.to_string(), "no remote is named");
}

/// A fake server that is played by the test.
struct Script {
    listener: TcpListener,
    stream: Option<TcpStream>,
    unread: Vec<u8>,
}

impl Script {
    async fn new() -> (Self, Remote) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = Self {
            listener,
            stream: None,
            unread: Vec::new(),
        };
        (script, Remote::Tcp("127.0.0.1".to_owned(), port))
    }

    async fn hear(&mut self) -> Json {
        loop {
            let messages = cobalt_ovs::fuzzing::split(&self.unread);
            if let Some(message) = messages.first() {
                self.unread.drain(..message.len());
                return serde_json::from_slice(message).unwrap();
            }
            let stream = self.stream.as_mut().unwrap();
            assert!(stream.read_buf(&mut self.unread).await.unwrap() > 0);
        }
    }

    async fn say(&mut self, message: Json) {
        let stream = self.stream.as_mut().unwrap();
        stream
            .write_all(message.to_string().as_bytes())
            .await
            .unwrap();
    }

    /// Takes a connection up to the monitor call, and returns its last transaction and its number.
    async fn introduce(&mut self) -> (Json, Json) {
        self.unread.clear();
        self.stream = Some(self.listener.accept().await.unwrap().0);
        let asked = self.hear().await;
        assert_eq!(asked["params"], json!(["_Server"]));
        let unknown = json!({ "error": "unknown database" });
        self.say(json!({ "id": asked["id"], "result": null, "error": unknown }))
            .await;
        let asked = self.hear().await;
        assert_eq!(asked["method"], "get_schema");
        let columns = json!({ "name": { "type": "string" } });
        let schema = json!({ "name": "Open_vSwitch", "version": "1",
            "tables": { "Bridge": { "columns": columns } } });
        self.say(json!({ "id": asked["id"], "result": schema, "error": null }))
            .await;
        let asked = self.hear().await;
        assert_eq!(asked["method"], "monitor_cond_since");
        (asked["params"][3].clone(), asked["id"].clone())
    }
}

const ROW: &str = "604144e0-4aa0-41fd-8c25-e82163c015b1";
const FIRST: &str = "00000000-0000-0000-0000-000000000001";
const SECOND: &str = "00000000-0000-0000-0000-000000000002";
const NONE: &str = "00000000-0000-0000-0000-000000000000";

async fn next(monitor: &mut Monitor) -> Event {
    // Whoever gives up all the time gets there, too.
    let patience = async {
        loop {
            let hasty = Duration::from_micros(100);
            if let Ok(event) = tokio::time::timeout(hasty, monitor.next()).await {
                return event;
            }
        }
    };
    tokio::time::timeout(crate::PATIENCE, patience)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_monitor_goes_on_from_the_last_transaction_unless_it_does_not_trust_its_rows() {
    let (mut server, remote) = Script::new().await;
    let play = tokio::spawn(async move {
        let (last, id) = server.introduce().await;
        assert_eq!(last, NONE);
        let rows = json!({ "Bridge": { ROW: { "initial": { "name": "a" } } } });
        server
            .say(json!({ "id": id, "error": null, "result": [false, FIRST, rows] }))
            .await;
        let rows = json!({ "Bridge": { ROW: { "modify": { "name": "b" } } } });
        let params = json!(["data", SECOND, rows]);
        server
            .say(json!({ "id": null, "method": "update3", "params": params }))
            .await;
        // The connection is lost. What follows are changes since the second transaction.
        let (last, id) = server.introduce().await;
        assert_eq!(last, SECOND);
        let rows = json!({ "Bridge": { ROW: { "modify": { "name": "c" } } } });
        server
            .say(json!({ "id": id, "error": null, "result": [true, FIRST, rows] }))
            .await;
        // A change of what was never there, and with it one that is lost.
        let rows = json!({ "Bridge": { ROW: { "modify": { "name": "d" } },
            FIRST: { "modify": { "name": "x" } } } });
        let params = json!(["data", SECOND, rows]);
        server
            .say(json!({ "id": null, "method": "update3", "params": params }))
            .await;
        let (last, id) = server.introduce().await;
        assert_eq!(last, NONE);
        let rows = json!({ "Bridge": { ROW: { "initial": { "name": "d" } } } });
        server
            .say(json!({ "id": id, "error": null, "result": [false, FIRST, rows] }))
            .await;
        server
    });
    let tables = Tables::new().table::<Bridge>();
    let options = Options::default();
    let mut monitor = Monitor::new(vswitch::DATABASE, vec![remote], tables, options);
    let name = |monitor: &Monitor| {
        let rows: Vec<&Bridge> = monitor.rows::<Bridge>().map(|(_, row)| row).collect();
        assert_eq!(rows.len(), 1);
        rows[0].name.clone()
    };
    let Event::Synced {
        resumed: false,
        changes,
        ..
    } = next(&mut monitor).await
    else {
        panic!("{monitor:?}");
    };
    assert_eq!((changes.len(), name(&monitor).as_str()), (1, "a"));
    assert!(matches!(next(&mut monitor).await, Event::Changed(changes) if changes.len() == 1));
    assert_eq!(name(&monitor), "b");
    assert!(matches!(next(&mut monitor).await, Event::Down { .. }));
    let Event::Synced {
        resumed: true,
        changes,
        ..
    } = next(&mut monitor).await
    else {
        panic!("{monitor:?}");
    };
    assert_eq!((changes.len(), name(&monitor).as_str()), (1, "c"));
    let Event::Down { error, .. } = next(&mut monitor).await else {
        panic!("{monitor:?}");
    };
    assert!(error.to_string().contains("was never there"), "{error}");
    // The change that had been applied before is told with the next reading.
    let Event::Synced {
        resumed: false,
        changes,
        ..
    } = next(&mut monitor).await
    else {
        panic!("{monitor:?}");
    };
    assert_eq!((changes.len(), name(&monitor).as_str()), (1, "d"));
    drop(play.await.unwrap());
}
