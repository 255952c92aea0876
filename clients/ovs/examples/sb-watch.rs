//! Follows OVN's southbound database, whichever member leads it:
//! `cargo run -p cobalt-ovs --example sb-watch -- tcp:10.0.0.1:6642,tcp:10.0.0.2:6642`
//! With `ssl:` remotes: `... REMOTES CA CERTIFICATE KEY`

use anyhow::{Context, Result};
use cobalt_ovs::ovsdb::southbound::{
    self, Chassis, ChassisPrivate, LogicalFlow, PortBinding, SbGlobal,
};
use cobalt_ovs::ovsdb::{Event, Monitor, Tables};
use cobalt_ovs::{Identity, Options, Remote, Tls};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let remotes = arguments.next();
    let remotes = remotes.context("which database? For example tcp:10.0.0.1:6642")?;
    let mut options = Options::default();
    if let (Some(ca), Some(certificate), Some(key)) =
        (arguments.next(), arguments.next(), arguments.next())
    {
        let (ca, certificate, key) = (ca.as_ref(), certificate.as_ref(), key.as_ref());
        options.tls = Some(Tls::from_files(ca, certificate, key, Identity::Host)?);
    }
    let tables = Tables::new()
        .table::<SbGlobal>()
        .table::<Chassis>()
        .table::<ChassisPrivate>()
        .table::<PortBinding>()
        .table::<LogicalFlow>();
    let remotes = Remote::list(&remotes)?;
    let mut monitor = Monitor::new(southbound::DATABASE, remotes, tables, options).leader_only();
    loop {
        match monitor.next().await {
            Event::Synced {
                remote,
                resumed,
                changes,
            } => {
                let how = if resumed { "went on" } else { "read all" };
                println!("{remote}: {how}, {} changes", changes.len());
                show(&monitor);
            }
            Event::Changed(changes) => {
                println!("{} changes", changes.len());
                show(&monitor);
            }
            Event::Down {
                error, retry_in, ..
            } => {
                let error = anyhow::Error::from(error);
                println!("down: {error:#}; next try in {retry_in:?}");
            }
            _ => {}
        }
    }
}

fn show(monitor: &Monitor) {
    let wanted = monitor.rows::<SbGlobal>().map(|(_, row)| row.nb_cfg).max();
    println!(
        "  {} ports, {} logical flows, configuration {}",
        monitor.tables().count::<PortBinding>(),
        monitor.tables().count::<LogicalFlow>(),
        wanted.unwrap_or(0)
    );
    for (uuid, chassis) in monitor.rows::<Chassis>() {
        let at = monitor
            .rows::<ChassisPrivate>()
            .find(|(_, row)| row.chassis == Some(uuid))
            .map_or(0, |(_, row)| row.nb_cfg);
        let ports = monitor.rows::<PortBinding>();
        let ports = ports.filter(|(_, port)| port.chassis == Some(uuid)).count();
        println!(
            "  chassis {}: configuration {at}, {ports} ports",
            chassis.name
        );
    }
}
