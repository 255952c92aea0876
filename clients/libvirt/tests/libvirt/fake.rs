//! Fake peers on a real port: what is not libvirt must not harm.

use std::time::Duration;

use cobalt_libvirt::{Closed, ConnectError, Connection, Error, FrameError, Options, Uri};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What is opened against a fake peer that does this with each connection.
async fn open<F>(peer: impl Fn(TcpStream) -> F + Send + 'static) -> Error
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            peer(stream).await;
        }
    });
    let uri: Uri = format!("qemu+tcp://127.0.0.1:{port}/system")
        .parse()
        .unwrap();
    let options = Options {
        call_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    Connection::open(&uri, &options).await.unwrap_err()
}

async fn after_the_first_call(mut stream: TcpStream, bytes: Vec<u8>) {
    let mut call = [0; 28];
    stream.read_exact(&mut call).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
}

/// A message with this header and payload.
fn message(words: [u32; 6], payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(28 + payload.len()).unwrap();
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    bytes.extend_from_slice(payload);
    bytes
}

#[tokio::test]
async fn a_fake_peer_that_sends_garbage_is_told_from_libvirt() {
    let error =
        open(|stream| after_the_first_call(stream, b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()))
            .await;
    assert!(
        matches!(
            error,
            Error::Closed(Closed::Protocol(FrameError::TooLong { .. }))
        ),
        "{error}"
    );
    assert!(error.to_string().contains("broke the protocol"), "{error}");
    let error = open(|stream| after_the_first_call(stream, vec![0; 64])).await;
    assert!(error.to_string().contains("may not be libvirt"), "{error}");
    let status = message([0x2000_8086, 1, 66, 1, 1, 77], &[]);
    let error = open(move |stream| after_the_first_call(stream, status.clone())).await;
    assert!(error.to_string().contains("bad header"), "{error}");
}

#[tokio::test]
async fn a_fake_peer_that_stops_in_the_middle_is_noticed() {
    let error = open(|stream| after_the_first_call(stream, vec![0, 0, 1, 0, 1, 2, 3])).await;
    assert!(
        matches!(error, Error::Closed(Closed::PeerMidMessage)),
        "{error}"
    );
    let error = open(|stream| after_the_first_call(stream, Vec::new())).await;
    assert!(matches!(error, Error::Closed(Closed::Peer)), "{error}");
}

#[tokio::test]
async fn a_fake_peer_that_answers_something_else_does_not_keep_us() {
    // Another question's number: nobody has the answer.
    let wrong = message([0x2000_8086, 1, 66, 1, 999, 0], &[0, 0, 0, 0]);
    let error = open(move |mut stream| {
        let wrong = wrong.clone();
        async move {
            stream.write_all(&wrong).await.unwrap();
            // It stays until we go.
            drop(stream.read_to_end(&mut Vec::new()).await);
        }
    })
    .await;
    assert!(error.is_timeout(), "{error}");
    // An answer that is cut short.
    let short = message([0x2000_8086, 1, 66, 1, 1, 0], &[0, 0, 0, 9]);
    let error = open(move |stream| after_the_first_call(stream, short.clone())).await;
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    // One that wants a password.
    let sasl = message([0x2000_8086, 1, 66, 1, 1, 0], &[0, 0, 0, 1, 0, 0, 0, 1]);
    let error = open(move |stream| after_the_first_call(stream, sasl.clone())).await;
    assert!(error.to_string().contains("wants SASL"), "{error}");
    assert!(error.to_string().contains("libvirtd.conf"), "{error}");
}

#[tokio::test]
async fn nobody_listens_and_that_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let uri: Uri = format!("qemu+tcp://127.0.0.1:{port}/system")
        .parse()
        .unwrap();
    let error = Connection::open(&uri, &Options::default())
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Connect(ConnectError::Unreachable { .. })),
        "{error}"
    );
    let uri: Uri = "qemu:///system?socket=/nonexistent/socket".parse().unwrap();
    let error = Connection::open(&uri, &Options::default())
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to connect to /nonexistent/socket"
    );
}
