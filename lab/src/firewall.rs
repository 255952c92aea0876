//! Finds out whether a firewall of the machine would cut the lab's machines off, before they
//! would hang for minutes and hardly say why. Two short-lived hosts try the two paths.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::net::{NodeLink, Subnets};
use crate::sweep::{group_prefix, link_prefix};

/// How long a packet may take on one machine, generously.
const PATIENCE: Duration = Duration::from_secs(3);

/// Fails when hosts on the bridge cannot reach this machine or each other.
pub async fn check(id: &str, bridge: &str, subnets: Subnets) -> Result<()> {
    let host = |number: u8| NodeLink {
        netns: format!("{}probe{number}", group_prefix(id)),
        link: format!("{}p{number}", link_prefix(id)),
        bridge: bridge.to_owned(),
        address: subnets.control(50 + number),
        pods: None,
        cables: Vec::new(),
    };
    let (first, second) = (host(1), host(2));
    let plugged = async {
        first.plug().await?;
        second.plug().await
    };
    let result = match plugged.await {
        Ok(()) => {
            let (from, to) = (first.netns.clone(), second.netns.clone());
            let (machine, address) = (subnets.machine(), second.address);
            let bridge = bridge.to_owned();
            tokio::task::spawn_blocking(move || paths(&from, &to, machine, address, &bridge))
                .await
                .context("the probe failed")?
        }
        Err(error) => Err(error),
    };
    first.unplug().await;
    second.unplug().await;
    result
}

fn paths(from: &str, to: &str, machine: Ipv4Addr, other: Ipv4Addr, bridge: &str) -> Result<()> {
    let listener = TcpListener::bind((machine, 0)).context("failed to listen on the bridge")?;
    let target = listener.local_addr().context("no address")?;
    if let Err(error) = within(from, move || connect(target))? {
        bail!(
            "the lab's machines cannot reach this machine ({error}): a firewall drops what comes \
             in from {bridge}. Allow it, for instance with `iptables -I INPUT -i cb+ -j ACCEPT`"
        );
    }
    let listener = within(to, move || TcpListener::bind((other, 0)))?
        .context("failed to listen in a namespace")?;
    let target = listener.local_addr().context("no address")?;
    if let Err(error) = within(from, move || connect(target))? {
        bail!(
            "the lab's machines cannot reach each other ({error}): bridged packets go through \
             this machine's firewall, and it drops them. Allow them, for instance with `iptables \
             -I FORWARD -i cb+ -o cb+ -j ACCEPT`"
        );
    }
    Ok(())
}

fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&target, PATIENCE)
}

/// Does something in a network namespace, on a thread that ends there.
fn within<T: Send + 'static>(netns: &str, what: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let path = Path::new("/run/netns").join(netns);
    let namespace = std::fs::File::open(&path)
        .with_context(|| format!("no network namespace {}", path.display()))?;
    let thread = std::thread::spawn(move || -> Result<T> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .context("failed to enter a network namespace")?;
        Ok(what())
    });
    match thread.join() {
        Ok(result) => result,
        Err(_) => bail!("a thread of the probe failed"),
    }
}
