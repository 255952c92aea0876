//! Counts the flows of a bridge, and finds those to ports that are not there:
//! `cargo run -p cobalt-ovs --example flows -- br-int [/run/openvswitch]`

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use cobalt_ovs::Options;
use cobalt_ovs::openflow::{Connection, FlowFilter};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let bridge = arguments
        .next()
        .context("which bridge? For example br-int")?;
    let directory = arguments.next();
    let directory = directory.as_deref().unwrap_or("/run/openvswitch");
    let options = Options::default();
    let mut switch = Connection::of(directory.as_ref(), &bridge, &options).await?;
    let features = switch.features().await?;
    let sum = switch.aggregate(FlowFilter::ALL).await?;
    println!(
        "{bridge}: OpenFlow {}, datapath {:016x}, {} flows, {} packets",
        switch.version(),
        features.datapath_id,
        sum.flows,
        sum.packets.unwrap_or(0)
    );
    let ports = switch.ports().await?;
    for port in &ports {
        println!("  {port:?}");
    }
    let known: BTreeSet<u32> = ports.iter().map(|port| port.port).collect();
    let (mut cookies, mut lost) = (BTreeMap::<u64, u32>::new(), 0);
    switch
        .flows(FlowFilter::ALL, |flow| {
            *cookies.entry(flow.cookie).or_default() += 1;
            let outputs = flow.output_ports().unwrap_or_default();
            if outputs.iter().any(|port| !known.contains(port)) {
                println!(
                    "  table {} cookie {:#x} to {outputs:?}",
                    flow.table, flow.cookie
                );
                lost += 1;
            }
        })
        .await?;
    println!(
        "{} cookies, {lost} flows to ports that are not there",
        cookies.len()
    );
    for table in switch
        .tables()
        .await?
        .iter()
        .filter(|table| table.flows > 0)
    {
        println!(
            "  table {:3}: {:5} flows, {:?} lookups",
            table.table, table.flows, table.lookups
        );
    }
    Ok(())
}
