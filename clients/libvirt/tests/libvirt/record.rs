//! Records what libvirt says, to pin the decoders on: run the tests with `RECORD_CORPUS=1` to make
//! the files of `tests/corpus` anew.

use std::path::PathBuf;

use cobalt_libvirt::Uri;
use cobalt_libvirt::fuzzing::{self, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Larger ones say nothing new.
const LARGEST: usize = 16 * 1024;
/// Answers that have a decoder worth pinning: domains, statistics, jobs, states, secrets.
const ANSWERS: [i32; 8] = [24, 212, 227, 228, 273, 287, 298, 344];

/// Where the files are.
pub fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// The same libvirt, perhaps through a recorder.
pub async fn recorded(uri: &Uri) -> Uri {
    if std::env::var_os("RECORD_CORPUS").is_none() {
        return uri.clone();
    }
    let target = format!("{}:16509", uri.host().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(target).await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::spawn(async move {
            drop(tokio::io::copy(&mut from_client, &mut to_server).await);
        });
        let mut unwritten = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        let mut release = String::new();
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            unwritten.extend_from_slice(&buffer[..read]);
            let (messages, used) = fuzzing::split(&unwritten);
            for message in &messages {
                keep(message, &mut release);
            }
            unwritten.drain(..used);
            if to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    });
    format!("qemu+tcp://127.0.0.1:{port}/system")
        .parse()
        .unwrap()
}

/// Writes the first message of each kind.
fn keep(message: &Message, release: &mut String) {
    // The program of the keepalive says nothing, and the release is not known before it is told.
    if message.program != 0x2000_8086 {
        return;
    }
    if message.kind == "reply" && message.procedure == 157 {
        let number = u64::from_be_bytes(message.payload[..8].try_into().unwrap());
        *release = format!("{}.{}", number / 1_000_000, number / 1000 % 1000);
    }
    let wanted = message.kind != "reply" || ANSWERS.contains(&message.procedure);
    if release.is_empty() || !wanted || message.bytes.len() > LARGEST {
        return;
    }
    let dir = corpus().join(&*release);
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(format!("{}-{}", message.kind, message.procedure));
    if !path.exists() {
        std::fs::write(path, &message.bytes).unwrap();
    }
}
