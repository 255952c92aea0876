//! `cobalt ovs`: looks into Open vSwitch on a node, through the agent that runs there.
//!
//! The OVSNode says how the node is doing, and where its agent answers; the agent says the rest. What
//! is asked changes nothing in the switch, but for the mirror that a capture needs while it runs.

mod agent;
mod bridges;
mod capture;
mod cluster;
mod pcap;
mod pin;
mod show;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use cobalt_api::ovsnode::OvsNode;
use serde_json::json;

use agent::{Agent, query};
use cluster::Place;

use crate::output::{Format, OutputArgs};
use crate::server;
use crate::text::{clean, clean_lines};

/// Where the chart of the agent is installed.
const NAMESPACE: &str = "ovn-system";
/// Whose tokens the chart of the agent lets people have.
const SERVICE_ACCOUNT: &str = "cobalt-ovs-diagnostics";
/// The bridge that OVN has its ports on, unless it was told otherwise.
const INTEGRATION_BRIDGE: &str = "br-int";
/// The longest flow that an agent takes.
const LONGEST_FLOW: usize = 4096;

const HELP: &str = "\
Examples:
  # An instance on hv1 has no network: which port is wrong, since when, and what to do?
  cobalt ovs show hv1

  # What would the switch do with this packet?
  cobalt ovs trace hv1 br-int 'in_port=tap0,icmp,nw_src=10.0.0.3,nw_dst=10.0.0.4'

  # What goes through the port of an instance? Live, in Wireshark
  cobalt ovs capture hv1 tap0 -w - | wireshark -k -i -";

const SHOW_HELP: &str = "\
Examples:
  cobalt ovs show hv1
  cobalt ovs show hv1 -o json | jq '.status.issues'

Exit codes:
  0  shown
  1  the command could not do its work
  2  wrong usage
  3  shown without the ports: the agent was not reached, and it says why";

const TRACE_HELP: &str = "\
Examples:
  # A ping from an instance to its neighbour
  cobalt ovs trace hv1 br-int \\
    'in_port=tap0,icmp,dl_src=fa:16:3e:00:00:03,dl_dst=fa:16:3e:00:00:04,nw_src=10.0.0.3,nw_dst=10.0.0.4'

  # What comes in from the physical network with VLAN 100
  cobalt ovs trace hv1 br-ex 'in_port=eno1,dl_vlan=100,arp'

No packet is sent. ovs-fields(7) has the names of the fields.

Exit codes:
  0  traced
  1  the command could not do its work, or the switch does not understand the flow
  2  wrong usage";

const FLOWS_HELP: &str = "\
Examples:
  cobalt ovs flows hv1                           OpenFlow, of the integration bridge
  cobalt ovs flows hv1 br-ex                     OpenFlow, of this bridge
  cobalt ovs flows hv1 --datapath                what the datapath does with packets now
  cobalt ovs flows hv1 --conntrack --zone 7      connections, of one zone
  cobalt ovs flows hv1 br-ex --fdb               which MAC address was seen behind which port
  cobalt ovs flows hv1 --bonds                   bonds and LACP
  cobalt ovs flows hv1 -o json | jq -r .text     the same, in a JSON document

Exit codes:
  0  printed
  1  the command could not do its work
  2  wrong usage";

/// Flags of `cobalt ovs`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct OvsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show how the switch of a node is doing, what is wrong, and its bridges and ports
    Show(ShowArgs),
    /// Show what the switch of a node would do with a packet
    Trace(TraceArgs),
    /// Record the packets of an interface, for Wireshark and tcpdump
    Capture(capture::CaptureArgs),
    /// Print flows, connections, learned addresses or bonds
    Flows(FlowsArgs),
}

/// Which node, and how its agent is asked.
#[derive(Debug, Args)]
struct TargetArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: String,
    /// Where the agents, their OVSNodes and the ServiceAccount are
    #[arg(long, short, value_name = "NAME", default_value = NAMESPACE)]
    namespace: String,
    /// The ServiceAccount whose token the agent is shown
    #[arg(long, value_name = "NAME", default_value = SERVICE_ACCOUNT)]
    service_account: String,
}

impl TargetArgs {
    async fn place(self) -> Result<Place> {
        let client = server::client().await?;
        Ok(Place::new(
            client,
            self.node,
            self.namespace,
            self.service_account,
        ))
    }
}

#[derive(Debug, Args)]
#[command(after_help = SHOW_HELP)]
struct ShowArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = TRACE_HELP)]
struct TraceArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The bridge that the packet comes to
    bridge: String,
    /// The packet, in the words of ovs-fields(7)
    #[arg(value_parser = flow)]
    flow: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = FLOWS_HELP)]
struct FlowsArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The bridge; without it the integration bridge
    #[arg(conflicts_with_all = ["datapath", "conntrack", "bonds"])]
    bridge: Option<String>,
    #[command(flatten)]
    what: What,
    /// Only connections of this zone
    #[arg(long, value_name = "N", requires = "conntrack")]
    zone: Option<u16>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[group(multiple = false)]
struct What {
    /// What the datapath does with packets now
    #[arg(long)]
    datapath: bool,
    /// The connections that are tracked
    #[arg(long)]
    conntrack: bool,
    /// Which MAC addresses were seen behind which port
    #[arg(long)]
    fdb: bool,
    /// The bonds, and what LACP has agreed on
    #[arg(long)]
    bonds: bool,
}

/// What an agent would refuse is told before it is asked.
fn flow(text: &str) -> Result<String> {
    if text.trim().is_empty() {
        bail!("say what the packet is, for example in_port=tap0,icmp");
    }
    if text.starts_with('-') {
        bail!("it is a flow, not a flag: a trace never sends a packet");
    }
    if text.len() > LONGEST_FLOW {
        bail!("it has more than {LONGEST_FLOW} bytes");
    }
    Ok(text.to_owned())
}

/// Does it.
pub async fn run(arguments: OvsArgs) -> Result<ExitCode> {
    match arguments.command {
        Command::Show(arguments) => {
            let place = arguments.target.place().await?;
            show::run(place, arguments.output.output == Format::Json).await
        }
        Command::Trace(arguments) => {
            let place = arguments.target.place().await?;
            let node = place.ovs_node().await?;
            let asked = [
                ("bridge", arguments.bridge.as_str()),
                ("flow", &arguments.flow),
            ];
            let mut agent = Agent::new(place, &node);
            let text = agent.text(&query("/v1/trace", &asked)).await?;
            let document = json!({
                "node": node.metadata.name,
                "bridge": arguments.bridge,
                "flow": arguments.flow,
                "text": text,
            });
            arguments
                .output
                .output
                .print(&clean_lines(&text), &document)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Flows(arguments) => {
            let place = arguments.target.place().await?;
            let node = place.ovs_node().await?;
            let path = question(
                &node,
                arguments.bridge.as_deref(),
                arguments.what,
                arguments.zone,
            )?;
            let text = Agent::new(place, &node).text(&path).await?;
            let document = json!({ "node": node.metadata.name, "question": path, "text": text });
            arguments
                .output
                .output
                .print(&clean_lines(&text), &document)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Capture(arguments) => capture::run(arguments).await,
    }
}

/// What the agent is asked for flows and what belongs to them.
fn question(node: &OvsNode, bridge: Option<&str>, what: What, zone: Option<u16>) -> Result<String> {
    if what.datapath {
        return Ok(query("/v1/datapath-flows", &[]));
    }
    if what.bonds {
        return Ok(query("/v1/bonds", &[]));
    }
    if what.conntrack {
        let zone = zone.map(|zone| zone.to_string());
        let asked: Vec<_> = zone.iter().map(|zone| ("zone", zone.as_str())).collect();
        return Ok(query("/v1/conntrack", &asked));
    }
    let bridge = match bridge {
        Some(bridge) => bridge,
        None => integration_bridge(node)?,
    };
    let path = if what.fdb { "/v1/fdb" } else { "/v1/flows" };
    Ok(query(path, &[("bridge", bridge)]))
}

/// The bridge that is meant where none is named.
fn integration_bridge(node: &OvsNode) -> Result<&str> {
    let bridges = node.status.iter().flat_map(|status| &status.bridges);
    let names: Vec<&str> = bridges.map(|bridge| bridge.name.as_str()).collect();
    match names.as_slice() {
        [only] => Ok(only),
        [] => bail!("its OVSNode lists no bridge; if there is one, name it after the node"),
        several if several.contains(&INTEGRATION_BRIDGE) => Ok(INTEGRATION_BRIDGE),
        several => bail!(
            "there is no bridge {INTEGRATION_BRIDGE}; name one after the node: {}",
            clean(&several.join(", "))
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use cobalt_api::ovsnode::{Bridge, OvsNodeSpec, OvsNodeStatus};

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        arguments: OvsArgs,
    }

    fn parse(words: &[&str]) -> Result<Command, String> {
        let all = std::iter::once("ovs").chain(words.iter().copied());
        let parsed = Program::try_parse_from(all).map_err(|error| error.to_string());
        parsed.map(|parsed| parsed.arguments.command)
    }

    fn node(bridges: &[&str]) -> OvsNode {
        let bridge = |name: &&str| Bridge {
            name: (*name).to_owned(),
            ports: None,
            flows: None,
            datapath_type: None,
            status: None,
            controller_connected: None,
        };
        let mut node = OvsNode::new("hv1", OvsNodeSpec::default());
        node.status = Some(OvsNodeStatus {
            bridges: bridges.iter().map(bridge).collect(),
            ..OvsNodeStatus::default()
        });
        node
    }

    #[test]
    fn bad_flags_are_refused_with_a_remedy() {
        let long = "x".repeat(LONGEST_FLOW + 1);
        let cases: [(&[&str], &str); 13] = [
            (&[], "Examples:"),
            (&["show"], "NODE"),
            (&["show", "hv1", "-o", "yaml"], "text, json"),
            (&["trace", "hv1", "br-int"], "FLOW"),
            (&["trace", "hv1", "br-int", " "], "in_port=tap0"),
            (
                &["trace", "hv1", "br-int", "--", "-generate"],
                "never sends",
            ),
            (&["trace", "hv1", "br-int", &long], "4096 bytes"),
            (&["flows", "hv1", "--zone", "1"], "--conntrack"),
            (&["flows", "hv1", "--fdb", "--bonds"], "cannot be used with"),
            (
                &["flows", "hv1", "br0", "--datapath"],
                "cannot be used with",
            ),
            (&["flows", "hv1", "--conntrack", "--zone", "65536"], "65536"),
            (&["capture", "hv1"], "INTERFACE"),
            (&["capture", "hv1", "tap0", "--seconds", "0"], "0"),
        ];
        for (words, remedy) in cases {
            let error = parse(words).unwrap_err();
            assert!(error.contains(remedy), "{words:?}: {error}");
        }
    }

    #[test]
    fn each_question_has_its_path() {
        let cases: [(&[&str], &str); 8] = [
            (&["flows", "hv1"], "/v1/flows?bridge=br-int"),
            (&["flows", "hv1", "br ex&"], "/v1/flows?bridge=br%20ex%26"),
            (&["flows", "hv1", "--fdb"], "/v1/fdb?bridge=br-int"),
            (&["flows", "hv1", "br-ex", "--fdb"], "/v1/fdb?bridge=br-ex"),
            (&["flows", "hv1", "--datapath"], "/v1/datapath-flows"),
            (&["flows", "hv1", "--conntrack"], "/v1/conntrack"),
            (
                &["flows", "hv1", "--conntrack", "--zone", "7"],
                "/v1/conntrack?zone=7",
            ),
            (&["flows", "hv1", "--bonds"], "/v1/bonds"),
        ];
        for (words, path) in cases {
            let Ok(Command::Flows(parsed)) = parse(words) else {
                panic!("{words:?}")
            };
            let bridge = parsed.bridge.as_deref();
            let asked = question(
                &node(&["br-ex", "br-int"]),
                bridge,
                parsed.what,
                parsed.zone,
            );
            assert_eq!(asked.unwrap(), path);
        }
    }

    #[test]
    fn the_integration_bridge_is_meant_where_none_is_named() {
        let cases: [(&[&str], Result<&str, &str>); 4] = [
            (&["br-ex", "br-int"], Ok("br-int")),
            (&["br-only"], Ok("br-only")),
            (&["br-a", "br-b"], Err("br-a, br-b")),
            (&[], Err("lists no bridge")),
        ];
        for (bridges, expected) in cases {
            let node = node(bridges);
            match (integration_bridge(&node), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected)),
                (found, expected) => panic!("{bridges:?}: {found:?}, not {expected:?}"),
            }
        }
    }
}
