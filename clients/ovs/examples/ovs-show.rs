//! Shows a switch, and what changes in it until Ctrl-C:
//! `cargo run -p cobalt-ovs --example ovs-show -- [unix:/run/openvswitch/db.sock]`

use anyhow::Result;
use cobalt_ovs::ovsdb::vswitch::{self, Bridge, Interface, OpenVswitch, Port};
use cobalt_ovs::ovsdb::{Event, Monitor, Select, Tables};
use cobalt_ovs::{Options, Remote};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let remotes = std::env::args().nth(1);
    let remotes = Remote::list(
        remotes
            .as_deref()
            .unwrap_or("unix:/run/openvswitch/db.sock"),
    )?;
    // Statistics change every five seconds, and are not what this is about.
    let tables = Tables::new()
        .table::<OpenVswitch>()
        .table::<Bridge>()
        .table::<Port>()
        .select(Select::<Interface>::all().without(&["statistics"]));
    let mut switch = Monitor::new(vswitch::DATABASE, remotes, tables, Options::default());
    loop {
        match switch.next().await {
            Event::Synced { remote, .. } => {
                println!("{remote}");
                show(&switch);
            }
            Event::Changed(changes) => {
                for change in changes {
                    println!("{change:?}");
                }
            }
            Event::Down { error, .. } => println!("no switch: {:#}", anyhow::Error::from(error)),
            _ => {}
        }
    }
}

fn show(switch: &Monitor) {
    for (_, row) in switch.rows::<OpenVswitch>() {
        println!("configuration {} of {}", row.cur_cfg, row.next_cfg);
    }
    for (_, bridge) in switch.rows::<Bridge>() {
        println!("bridge {} ({})", bridge.name, bridge.datapath_type);
        for port in &bridge.ports {
            let Some(port) = switch.get::<Port>(*port) else {
                continue;
            };
            println!("  port {}", port.name);
            let interfaces = port.interfaces.iter();
            for interface in interfaces.filter_map(|uuid| switch.get::<Interface>(*uuid)) {
                println!(
                    "    {} {} {} {}",
                    interface.name,
                    interface.kind,
                    interface.link_state.as_deref().unwrap_or("-"),
                    interface.error.as_deref().unwrap_or("")
                );
            }
        }
    }
}
