//! Shows the events of a host until it is gone:
//! `cargo run -p cobalt-libvirt --example watch -- qemu:///system`. `RUST_LOG=debug` shows more.

use anyhow::{Context, Result};
use cobalt_libvirt::{Connection, EventKind, Options, Uri};
use futures::StreamExt;

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let uri: Uri = std::env::args()
        .nth(1)
        .context("which libvirt? For example qemu:///system")?
        .parse()?;
    let libvirt = Connection::open(&uri, &Options::default()).await?;
    let mut events = libvirt.subscribe(EventKind::ALL).await?;
    eprintln!("subscribed to {:?}", events.kinds());
    while let Some(event) = events.next().await {
        let name = event.domain().map_or("", |domain| &domain.name);
        println!("{:20} {name:20} {event:?}", event.kind_name());
    }
    anyhow::bail!("the connection is over: {}", libvirt.closed().await)
}
