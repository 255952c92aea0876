//! Proxies in front of real servers: one that makes an older server of a new one, one that records.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cobalt_ovs::{Remote, fuzzing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

fn path(remote: &Remote) -> PathBuf {
    match remote {
        Remote::Unix(path) => path.clone(),
        other => panic!("{other}"),
    }
}

/// A socket of our own.
fn listen() -> (UnixListener, Remote) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("cobalt-ovs-{}-{number}.sock", std::process::id());
    let socket = std::env::temp_dir().join(name);
    drop(std::fs::remove_file(&socket));
    let listener = UnixListener::bind(&socket).unwrap();
    (listener, Remote::Unix(socket))
}

/// The same server, which knows some methods no more.
pub async fn forgetful(server: Remote, unknown: &'static [&'static str]) -> Remote {
    let (listener, remote) = listen();
    let socket = path(&remote);
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        drop(std::fs::remove_file(socket));
        let (mut from_client, mut to_client) = client.into_split();
        let stream = UnixStream::connect(path(&server)).await.unwrap();
        let (mut from_server, mut to_server) = stream.into_split();
        // Refusals go the way of the answers, between two of them.
        let (refuse, mut refusals) = tokio::sync::mpsc::channel::<Vec<u8>>(16);
        tokio::spawn(async move {
            let mut unread = Vec::new();
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                unread.extend_from_slice(&buffer[..read]);
                for message in take(&mut unread) {
                    let call: serde_json::Value = serde_json::from_slice(&message).unwrap();
                    let method = call["method"].as_str().unwrap_or_default();
                    if unknown.contains(&method) {
                        let refusal = serde_json::json!({ "id": call["id"], "result": null,
                            "error": { "error": "unknown method", "syntax": "" } });
                        refuse.send(refusal.to_string().into_bytes()).await.unwrap();
                    } else {
                        to_server.write_all(&message).await.unwrap();
                    }
                }
            }
        });
        let mut unread = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            tokio::select! {
                Some(refusal) = refusals.recv() => to_client.write_all(&refusal).await.unwrap(),
                read = from_server.read(&mut buffer) => {
                    let Ok(read @ 1..) = read else { return };
                    unread.extend_from_slice(&buffer[..read]);
                    for message in take(&mut unread) {
                        if to_client.write_all(&message).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    });
    remote
}

/// The whole messages, which are taken away.
fn take(unread: &mut Vec<u8>) -> Vec<Bytes> {
    let messages = fuzzing::split(unread);
    let used: usize = messages.iter().map(Bytes::len).sum();
    unread.drain(..used);
    messages
}

/// The same server, and what it says.
pub async fn recorded(server: Remote) -> (Remote, Arc<Mutex<Vec<u8>>>) {
    let (listener, remote) = listen();
    let socket = path(&remote);
    let said = Arc::new(Mutex::new(Vec::new()));
    let record = said.clone();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        drop(std::fs::remove_file(socket));
        let (mut from_client, mut to_client) = client.into_split();
        let (input, mut to_server): (
            Box<dyn tokio::io::AsyncRead + Send + Unpin>,
            Box<dyn tokio::io::AsyncWrite + Send + Unpin>,
        ) = match &server {
            Remote::Unix(path) => {
                let (input, output) = UnixStream::connect(path).await.unwrap().into_split();
                (Box::new(input), Box::new(output))
            }
            Remote::Tcp(host, port) => {
                let stream = tokio::net::TcpStream::connect((host.as_str(), *port)).await;
                let (input, output) = stream.unwrap().into_split();
                (Box::new(input), Box::new(output))
            }
            Remote::Ssl(..) => panic!("nothing to be read there"),
        };
        let mut from_server = input;
        tokio::spawn(async move {
            drop(tokio::io::copy(&mut from_client, &mut to_server).await);
        });
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            record.lock().unwrap().extend_from_slice(&buffer[..read]);
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    });
    (remote, said)
}
