//! Lists the domains of a host: `cargo run -p cobalt-libvirt --example list -- qemu:///system`

use anyhow::{Context, Result};
use cobalt_libvirt::{Connection, ListDomains, Options, StatsGroups, Supported, Tls, Uri};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let uri: Uri = arguments
        .next()
        .context(
            "which libvirt? For example qemu:///system, or qemu+tls://host/system PKI-DIRECTORY",
        )?
        .parse()?;
    let mut options = Options::default();
    if let Some(pki) = arguments.next() {
        options.tls = Some(Tls::from_pki(pki.as_ref())?);
    }
    let libvirt = Connection::open(&uri, &options).await?;
    let version = libvirt.lib_version().await?;
    let node = libvirt.node_info().await?;
    println!(
        "{}: libvirt {version}, {} CPUs, {} MiB",
        libvirt.hostname().await?,
        node.cpus,
        node.memory_kib / 1024
    );
    let groups = StatsGroups::STATE | StatsGroups::BALLOON;
    // Not every driver has statistics.
    let stats = libvirt.all_stats(groups).await.supported()?;
    for domain in libvirt.domains(ListDomains::ALL).await? {
        let status = libvirt.state(&domain).await?;
        let memory = stats
            .iter()
            .flatten()
            .find(|stats| stats.domain.uuid == domain.uuid)
            .and_then(|stats| stats.params.get_u64("balloon.current"))
            .map_or_else(String::new, |kib| format!("{} MiB", kib / 1024));
        println!(
            "{}  {:10} {:12} {memory:>10}  {}",
            domain.uuid,
            status.state.name(),
            status.reason_name().unwrap_or(""),
            domain.name
        );
    }
    libvirt.close().await;
    Ok(())
}
