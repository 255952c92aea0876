use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex, split,
};

use super::*;

/// A fake peer, played by the test.
struct Peer {
    input: BufReader<tokio::io::ReadHalf<DuplexStream>>,
    output: tokio::io::WriteHalf<DuplexStream>,
}

impl Peer {
    async fn hear(&mut self) -> Value {
        let mut bytes = Vec::new();
        loop {
            let read = self.input.read_until(b'}', &mut bytes).await.unwrap();
            assert!(read > 0, "the connection is over");
            if let Ok(value) = serde_json::from_slice(&bytes) {
                return value;
            }
        }
    }

    async fn say(&mut self, value: Value) {
        let text = value.to_string();
        self.output.write_all(text.as_bytes()).await.unwrap();
    }
}

fn connect(keepalive: Option<Keepalive>) -> (Rpc, mpsc::Receiver<Notification>, Peer) {
    let (ours, theirs) = duplex(64 * 1024);
    let (input, output) = split(ours);
    let options = Options {
        call_timeout: Duration::from_secs(20),
        ..Options::default()
    };
    let (rpc, notifications) = Rpc::start(Box::new(input), Box::new(output), &options, keepalive);
    let (input, output) = split(theirs);
    let input = BufReader::new(input);
    (rpc, notifications, Peer { input, output })
}

async fn call(rpc: &Rpc, params: Value) -> Result<Answer, Error> {
    rpc.call("m", "a call", &params).await
}

#[tokio::test]
async fn answers_reach_who_asked_in_any_order() {
    let (rpc, _notifications, mut peer) = connect(None);
    let (first, second) = (rpc.clone(), rpc.clone());
    let first = tokio::spawn(async move { call(&first, json!(["one"])).await });
    let asked = peer.hear().await;
    assert_eq!(
        (&asked["method"], &asked["params"]),
        (&json!("m"), &json!(["one"]))
    );
    let second = tokio::spawn(async move { call(&second, json!(["two"])).await });
    let again = peer.hear().await;
    peer.say(json!({ "id": 999, "result": "nobody's", "error": null }))
        .await;
    peer.say(json!({ "error": { "error": "no" }, "result": null, "id": again["id"] }))
        .await;
    peer.say(json!({ "id": asked["id"], "error": null, "result": [1] }))
        .await;
    assert_eq!(first.await.unwrap().unwrap().unwrap(), &b"[1]"[..]);
    let refused = second.await.unwrap().unwrap().unwrap_err();
    assert_eq!(refused, &b"{\"error\":\"no\"}"[..]);
}

#[tokio::test]
async fn a_peer_that_asks_whether_we_are_there_is_answered() {
    let (_rpc, _notifications, mut peer) = connect(None);
    peer.say(json!({ "method": "echo", "params": ["x", 1], "id": "e" }))
        .await;
    let expected = json!({ "error": null, "result": ["x", 1], "id": "e" });
    assert_eq!(peer.hear().await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_asked_and_then_given_up() {
    let keepalive = Keepalive {
        interval: Duration::from_secs(5),
        count: 2,
    };
    let (rpc, _notifications, mut peer) = connect(Some(keepalive));
    let asked = peer.hear().await;
    assert_eq!(asked["method"], "echo");
    // One that answers is left alone.
    peer.say(json!({ "id": asked["id"], "result": [], "error": null }))
        .await;
    assert_eq!(peer.hear().await["method"], "echo");
    assert_eq!(peer.hear().await["method"], "echo");
    let silent = Closed::Keepalive {
        interval: keepalive.interval,
        count: 2,
    };
    assert_eq!(rpc.closed().await, silent);
    let error = call(&rpc, json!([])).await.unwrap_err();
    assert!(matches!(error, Error::Closed(why) if why == silent));
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_with_its_deadline_and_the_next_one_works() {
    let (rpc, _notifications, mut peer) = connect(None);
    let late = call(&rpc, json!([])).await.unwrap_err();
    assert!(late.is_timeout(), "{late}");
    assert_eq!(late.to_string(), "no answer within 20s (a call)");
    let asked = peer.hear().await;
    let next = tokio::spawn(async move { call(&rpc, json!([])).await });
    let again = peer.hear().await;
    // What comes too late is nobody's.
    peer.say(json!({ "id": asked["id"], "result": "late", "error": null }))
        .await;
    peer.say(json!({ "id": again["id"], "result": "good", "error": null }))
        .await;
    assert_eq!(next.await.unwrap().unwrap().unwrap(), &b"\"good\""[..]);
}

#[tokio::test]
async fn notifications_that_nobody_takes_hold_up_the_peer_and_none_is_lost() {
    let (rpc, mut notifications, mut peer) = connect(None);
    let many = NOTIFICATIONS * 3;
    for number in 0..many {
        peer.say(json!({ "method": "update3", "params": [number], "id": null }))
            .await;
    }
    let asking = tokio::spawn(async move { call(&rpc, json!([])).await });
    let asked = peer.hear().await;
    peer.say(json!({ "id": asked["id"], "result": "behind them", "error": null }))
        .await;
    for number in 0..many {
        let next = notifications.recv().await.unwrap();
        assert_eq!(next.method, "update3");
        assert_eq!(next.params, format!("[{number}]").as_bytes());
    }
    assert!(asking.await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn notifications_are_no_burden_when_nobody_wants_them() {
    let (rpc, notifications, mut peer) = connect(None);
    drop(notifications);
    for number in 0..NOTIFICATIONS * 2 {
        peer.say(json!({ "method": "update3", "params": [number], "id": null }))
            .await;
    }
    let asking = tokio::spawn(async move { call(&rpc, json!([])).await });
    let asked = peer.hear().await;
    peer.say(json!({ "id": asked["id"], "result": 1, "error": null }))
        .await;
    assert!(asking.await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn what_is_no_json_rpc_ends_the_connection() {
    for (text, expected) in [
        ("{\"id\": nonsense}", "no JSON-RPC"),
        ("nothing like it", "may not be JSON-RPC"),
    ] {
        let (rpc, _notifications, mut peer) = connect(None);
        peer.output.write_all(text.as_bytes()).await.unwrap();
        let why = rpc.closed().await.to_string();
        assert!(why.contains(expected), "{why}");
    }
    let (rpc, _notifications, mut peer) = connect(None);
    peer.output.write_all(b"{\"id\":").await.unwrap();
    drop(peer);
    assert_eq!(rpc.closed().await, Closed::PeerMidMessage);
}

#[tokio::test]
async fn the_connection_ends_with_its_last_user() {
    let (rpc, _notifications, mut peer) = connect(None);
    let other = rpc.clone();
    drop(rpc);
    assert_eq!(other.why_closed(), None);
    drop(other);
    let mut rest = Vec::new();
    peer.input.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_given_up() {
    let (rpc, _notifications, peer) = connect(None);
    let long = "x".repeat(MAX_UNREAD_CALLS);
    let calls = (0..3).map(|_| {
        let (rpc, long) = (rpc.clone(), long.clone());
        tokio::spawn(async move { call(&rpc, json!([long])).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Closed(Closed::Deaf)), "{error}");
    }
    drop(peer);
}

#[test]
fn what_is_nested_deeply_is_no_danger() {
    let deep = format!("{}{}", "[".repeat(300_000), "]".repeat(300_000));
    let message = Bytes::from(format!("{{\"id\":1,\"result\":{deep},\"error\":null}}"));
    let mut framer = Framer::new(message.len());
    framer.space().extend_from_slice(&message);
    assert_eq!(framer.next(), Ok(Some(message.clone())));
    match Message::read(&message) {
        Ok(Message::Answer { answer, .. }) => {
            let json = answer.unwrap();
            assert!(serde_json::from_slice::<Vec<String>>(&json).is_err());
            assert!(crate::fuzzing::value(&json).is_none());
            assert!(crate::fuzzing::apply(&mut crate::fuzzing::tables(), &json, true).is_none());
            let unknown = format!("{{\"Nothing\":{deep},\"Bridge\":{deep}}}");
            let tables = &mut crate::fuzzing::tables();
            assert!(crate::fuzzing::apply(tables, unknown.as_bytes(), true).is_none());
        }
        other => panic!("{other:?}"),
    }
}
