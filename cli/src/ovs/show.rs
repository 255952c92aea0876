//! How the switch of a node is doing: what its OVSNode says, which needs no agent, and the bridges
//! and ports, which the agent tells.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use cobalt_api::conditions::{self, OvsNodeCondition, Reason};
use cobalt_api::ovsnode::{OvsNode, OvsNodeStatus, Severity};
use cobalt_runtime::chain;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::agent::{Agent, Trouble};
use super::bridges::{self, Bridges, kind};
use super::cluster::Place;
use crate::text::{self, clean, clean_lines, put, span, table};

/// The exit code when the agent was not reached.
const WITHOUT_AGENT: u8 = 3;

/// Shows a node.
pub async fn run(place: Place, as_json: bool) -> Result<ExitCode> {
    let node = place.ovs_node().await?;
    let mut agent = Agent::new(place, &node);
    let asked = agent.json::<Value>("/v1/bridges").await;
    let parsed = asked.and_then(|raw| {
        let read = serde_json::from_value::<Bridges>(raw.clone());
        let read = read.map_err(|error| Trouble::Garbled {
            url: agent.url(),
            why: clean(&error.to_string()),
        })?;
        Ok((raw, read))
    });
    let code = match &parsed {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(WITHOUT_AGENT),
    };
    if as_json {
        let parsed = parsed.map(|(raw, _)| raw);
        put(&text::json(&machine(&node, &parsed))?);
    } else {
        let parsed = parsed.map(|(_, read)| read);
        put(&render(&node, &parsed, Timestamp::now()));
    }
    Ok(code)
}

/// All of it, for programs.
fn machine(node: &OvsNode, bridges: &Result<Value, Trouble>) -> Value {
    let (live, trouble) = match bridges {
        Ok(raw) => (raw.get("bridges").cloned(), None),
        Err(trouble) => (None, Some(chain(trouble))),
    };
    json!({
        "node": node.metadata.name,
        "namespace": node.metadata.namespace,
        "status": node.status,
        "bridges": live,
        "agentError": trouble,
    })
}

/// All of it, for people.
fn render(node: &OvsNode, bridges: &Result<Bridges, Trouble>, now: Timestamp) -> String {
    let nothing = OvsNodeStatus::default();
    let status = node.status.as_ref().unwrap_or(&nothing);
    let mut out = head(node, status, now);
    out.push_str(&conditions_table(&status.conditions, now));
    out.push_str(&issues(status, now));
    match bridges {
        Ok(bridges) => out.push_str(&bridges::live(bridges, status)),
        Err(trouble) => {
            out.push_str(&bridges::last_written(status));
            let why = clean_lines(&chain(trouble));
            write!(
                out,
                "\nThis is what the agent wrote last; its ports are not shown:\n{why}"
            )
            .ok();
        }
    }
    out
}

/// The node in one line.
fn head(node: &OvsNode, status: &OvsNodeStatus, now: Timestamp) -> String {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let ready = conditions::find(&status.conditions, OvsNodeCondition::Ready);
    let mut facts = vec![match ready {
        Some(ready) if ready.status == "True" => "ready".to_owned(),
        Some(ready) if ready.reason == Reason::AgentSilent.as_str() => {
            let since = span(ready.last_transition_time.0, now);
            format!("STALE for {since}: its agent is silent")
        }
        Some(ready) => format!("NOT ready for {}", span(ready.last_transition_time.0, now)),
        None => "not looked at yet".to_owned(),
    }];
    if let Some(version) = &status.ovs_version {
        facts.push(format!("OVS {}", clean(version)));
    }
    if status.dpdk_enabled == Some(true) {
        let version = status.dpdk_version.as_deref().unwrap_or_default();
        facts.push(clean(&format!("DPDK {version}")).trim_end().to_owned());
    }
    if let Some(ovn) = &status.ovn_controller {
        let chassis = ovn.chassis_id.as_deref().map(clean);
        let chassis = chassis.map_or_else(|| "OVN".to_owned(), |id| format!("OVN chassis {id}"));
        facts.push(chassis);
    }
    if let Some(written) = last_write(node) {
        facts.push(format!("written {} ago", span(written, now)));
    }
    format!("{}: {}\n", clean(name), facts.join(", "))
}

/// When the status was last written.
fn last_write(node: &OvsNode) -> Option<Timestamp> {
    let entries = node.metadata.managed_fields.iter().flatten();
    let statuses = entries.filter(|entry| entry.subresource.as_deref() == Some("status"));
    statuses
        .filter_map(|entry| Some(entry.time.as_ref()?.0))
        .max()
}

/// What is not as it should be first; nobody waits for what is Unknown.
fn conditions_table(all: &[Condition], now: Timestamp) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut all: Vec<&Condition> = all.iter().collect();
    all.sort_by_key(|condition| match condition.status.as_str() {
        "False" => 0,
        "Unknown" => 1,
        _ => 2,
    });
    let rows: Vec<[String; 4]> = all
        .iter()
        .map(|condition| {
            [
                clean(&condition.type_),
                clean(&condition.status),
                span(condition.last_transition_time.0, now),
                clean(&condition.message),
            ]
        })
        .collect();
    format!("\n{}", table(["CONDITION", "STATUS", "FOR", "WHY"], &rows))
}

/// What is wrong, the worst first, and what to do.
fn issues(status: &OvsNodeStatus, now: Timestamp) -> String {
    let mut all: Vec<_> = status.issues.iter().collect();
    if all.is_empty() {
        return "\nNo issues.\n".to_owned();
    }
    all.sort_by_key(|issue| match issue.severity {
        Severity::Critical => 0,
        Severity::Warning => 1,
        Severity::Info => 2,
    });
    let mut out = String::new();
    for issue in all {
        write!(out, "\n{} {}", issue.severity, kind(issue)).ok();
        if let Some(object) = &issue.object {
            write!(out, " {}", clean(object)).ok();
        }
        if let Some(since) = &issue.detected_at {
            write!(out, ", for {} (since {})", span(since.0, now), since.0).ok();
        }
        writeln!(out, "\n  {}", clean(&issue.message)).ok();
        if let Some(remedy) = &issue.remedy {
            writeln!(out, "  To do: {}", clean(remedy)).ok();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use cobalt_api::conditions::Status;
    use cobalt_api::ovsnode::{
        Bond, BondMember, BondStatus, Bridge, BridgeStatus, Interfaces, Issue, LinkStatus,
        OvnController, OvsNodeSpec, PhysicalInterface,
    };
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn condition(type_: OvsNodeCondition, status: Status, message: &str) -> Condition {
        Condition {
            type_: type_.as_str().to_owned(),
            status: status.as_str().to_owned(),
            reason: Reason::Degraded.as_str().to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(at(10)),
            observed_generation: None,
        }
    }

    fn issue(severity: Severity, kind: &str, object: &str) -> Issue {
        Issue {
            severity,
            message: format!("{object} is\nwrong"),
            detected_at: Some(Time(at(40))),
            kind: Some(kind.to_owned()),
            object: Some(object.to_owned()),
            remedy: Some("mend\u{1b} it".to_owned()),
        }
    }

    fn bridge(name: &str, status: BridgeStatus) -> Bridge {
        Bridge {
            name: name.to_owned(),
            ports: Some(2),
            flows: Some(if name == "br-ex" { 1 } else { 30 }),
            datapath_type: Some("netdev".to_owned()),
            status: Some(status),
            controller_connected: None,
        }
    }

    fn node() -> OvsNode {
        let mut node = OvsNode::new("hv1", OvsNodeSpec::default());
        node.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
            subresource: Some("status".to_owned()),
            time: Some(Time(at(70))),
            ..ManagedFieldsEntry::default()
        }]);
        node.status = Some(OvsNodeStatus {
            ovs_version: Some("3.1.0".to_owned()),
            bridges: vec![
                bridge("br-ex", BridgeStatus::Degraded),
                bridge("br-int", BridgeStatus::Active),
            ],
            interfaces: Some(Interfaces {
                physical: vec![PhysicalInterface {
                    name: "eno2".to_owned(),
                    status: Some(LinkStatus::Down),
                    speed: None,
                    bits_per_second: None,
                    bond: Some("bond0".to_owned()),
                }],
                bonds: vec![Bond {
                    name: "bond0".to_owned(),
                    mode: Some("balance-tcp".to_owned()),
                    status: Some(BondStatus::Degraded),
                    members: Some(2),
                    active_members: Some(1),
                    lacp: Some("negotiated".to_owned()),
                    member_states: [("eno1", true), ("eno2", false)]
                        .map(|(name, active)| BondMember {
                            name: name.to_owned(),
                            active: Some(active),
                            status: None,
                            lacp_current: None,
                        })
                        .to_vec(),
                }],
            }),
            ovn_controller: Some(OvnController {
                connected: Some(true),
                sb_connection: None,
                chassis_id: Some("chassis-1".to_owned()),
            }),
            conditions: vec![
                condition(OvsNodeCondition::Ready, Status::False, "no"),
                condition(OvsNodeCondition::OvsdbConnected, Status::True, ""),
                condition(OvsNodeCondition::AllBondsHealthy, Status::False, "bond0"),
            ],
            issues: vec![
                issue(Severity::Warning, "BondMemberDown", "bond0/eno2"),
                issue(Severity::Critical, "OrphanPort", "tap9"),
                issue(Severity::Info, "PortBoundElsewhere", "tap1"),
            ],
            ..OvsNodeStatus::default()
        });
        node
    }

    fn told() -> Bridges {
        let tap = |name: &str, port: i64, id: &str| {
            json!({ "name": name, "tag": null, "bond": null, "interfaces": [{
                "name": name, "type": "", "ofport": port, "adminState": "up", "linkState": "up",
                "mac": "fe:00:00:00:00:01", "mtu": 1442, "ifaceId": id,
                "attachedMac": "fa:16:3e:00:00:01", "error": null, "ovnInstalled": true,
            }]})
        };
        let card = |name: &str, state: &str| {
            json!({ "name": name, "type": "", "ofport": 7, "adminState": "up",
                    "linkState": state, "mac": "aa:00:00:00:00:01", "mtu": 1500 })
        };
        let mut broken = tap("tap3", -1, "id-3");
        broken["interfaces"][0]["error"] = json!("could not open\u{1b}[2J tap3");
        let internal = json!({ "name": "br-int", "tag": 7, "interfaces": [
            { "name": "br-int", "type": "internal", "ofport": 65534, "adminState": "down",
              "linkState": "down" },
        ]});
        let bond = json!({ "name": "bond0", "tag": null,
            "bond": { "mode": "balance-tcp", "lacp": true, "active": "eno1" },
            "interfaces": [card("eno1", "up"), card("eno2", "down")],
        });
        let value = json!({ "bridges": [
            { "name": "br-ex", "datapathType": "netdev", "failMode": "standalone", "ports": [bond] },
            { "name": "br-int", "datapathType": "", "failMode": "secure", "ports": [
                internal, tap("tap1", 1, "id-1"), tap("tap9", 9, "id-9"), broken,
            ]},
        ]});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_is_wrong_comes_first() {
        let expected = "\
hv1: NOT ready for 1m30s, OVS 3.1.0, OVN chassis chassis-1, written 30s ago

CONDITION        STATUS  FOR    WHY
Ready            False   1m30s  no
AllBondsHealthy  False   1m30s  bond0
OVSDBConnected   True    1m30s

Critical OrphanPort tap9, for 1m00s (since 1970-01-01T00:00:40Z)
  tap9 is wrong
  To do: mend  it

Warning BondMemberDown bond0/eno2, for 1m00s (since 1970-01-01T00:00:40Z)
  bond0/eno2 is wrong
  To do: mend  it

Info PortBoundElsewhere tap1, for 1m00s (since 1970-01-01T00:00:40Z)
  tap1 is wrong
  To do: mend  it

br-int: datapath system, fail mode secure, 4 ports, 30 flows, Active
  PORT    TYPE      OFPORT  LINK  TAG  MTU   MAC                LOGICAL PORT  WHAT IS WRONG
! tap9    -         9       up    -    1442  fa:16:3e:00:00:01  id-9          OrphanPort
! tap3    -         -1      up    -    1442  fa:16:3e:00:00:01  id-3          could not open [2J tap3
  tap1    -         1       up    -    1442  fa:16:3e:00:00:01  id-1          PortBoundElsewhere
  br-int  internal  65534   off   7    -     -                  -

br-ex: datapath netdev, fail mode standalone, 1 port, 1 flow, Degraded
bond0: bond, balance-tcp, LACP on, active eno1
  PORT    TYPE  OFPORT  LINK  TAG  MTU   MAC                LOGICAL PORT  WHAT IS WRONG
! bond0   bond  -       -     -    -     -                  -
!   eno2  -     7       down  -    1500  aa:00:00:00:00:01  -             BondMemberDown
    eno1  -     7       up    -    1500  aa:00:00:00:00:01  -
";
        let out = render(&node(), &Ok(told()), at(100));
        assert_eq!(out, expected);
    }

    #[test]
    fn without_the_agent_there_is_what_it_wrote_last() {
        let trouble = Trouble::Silent {
            url: "https://192.0.2.1:9476".to_owned(),
            after: std::time::Duration::from_secs(10),
        };
        let out = render(&node(), &Err(trouble), at(100));
        let expected = "
br-ex: datapath netdev, 2 ports, 1 flow, Degraded

br-int: datapath netdev, 2 ports, 30 flows, Active

BOND   STATUS    MODE         LACP        MEMBERS
bond0  Degraded  balance-tcp  negotiated  eno1 active, eno2 NOT active

CARD  LINK  SPEED  BOND
eno2  Down  -      bond0

This is what the agent wrote last; its ports are not shown:
https://192.0.2.1:9476 does not answer within 10 s: see whether the node is up, and whether \
firewalls and network policies let you reach it from here
";
        assert!(out.contains("Critical OrphanPort tap9"), "{out}");
        assert!(out.ends_with(expected), "{out}");
    }

    #[test]
    fn a_node_that_nobody_has_looked_at_is_shown() {
        let node = OvsNode::new("hv1", OvsNodeSpec::default());
        let nothing = Bridges { bridges: vec![] };
        let out = render(&node, &Ok(nothing), at(0));
        assert_eq!(out, "hv1: not looked at yet\n\nNo issues.\n");
    }

    #[test]
    fn the_report_of_a_silent_agent_is_said_to_be_stale() {
        let mut node = node();
        let status = node.status.as_mut().unwrap();
        for condition in &mut status.conditions {
            condition.status = Status::Unknown.as_str().to_owned();
            condition.reason = Reason::AgentSilent.as_str().to_owned();
            condition.message = "silent since noon".to_owned();
        }
        let trouble = Trouble::ApiServer(std::time::Duration::from_secs(30));
        let out = render(&node, &Err(trouble), at(100));
        let first = "hv1: STALE for 1m30s: its agent is silent, OVS 3.1.0,";
        assert!(out.starts_with(first), "{out}");
        assert!(out.contains("silent since noon"), "{out}");
    }

    #[test]
    fn programs_get_what_the_agent_said_and_why_it_did_not() {
        let said = json!({ "bridges": [{ "name": "br-int", "new": 1 }] });
        let out = machine(&node(), &Ok(said));
        assert_eq!(out["node"], "hv1");
        assert_eq!(out["bridges"][0]["new"], 1);
        assert_eq!(out["agentError"], Value::Null);
        assert_eq!(out["status"]["issues"][0]["object"], "bond0/eno2");
        let trouble = Trouble::ApiServer(std::time::Duration::from_secs(30));
        let out = machine(&node(), &Err(trouble));
        assert_eq!(out["bridges"], Value::Null);
        let why = out["agentError"].as_str().unwrap();
        assert!(why.contains("try again"), "{why}");
    }
}
