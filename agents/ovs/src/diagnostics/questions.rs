//! What the database and ovs-vswitchd answer.
//!
//! ovs-vswitchd answers while it does nothing else, so it is asked one question at a time, however
//! many ask.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use cobalt_ovs::ovsdb::Connection;
use cobalt_ovs::{Closed, Error, Options, Unixctl};
use cobalt_runtime::chain;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use super::Refusal;
use super::arguments::Question;
use crate::observe::switch::{Bridge, Interface, Port, Switch};

/// How long ovs-vswitchd may take, and how long the others may.
const ANSWER: Duration = Duration::from_secs(15);
const TURN: Duration = Duration::from_secs(30);
/// How long an answer may be. It is in memory, more than once.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Who is asked.
#[derive(Debug, Clone)]
pub struct Questions {
    switch: watch::Receiver<Option<Arc<Switch>>>,
    connection: watch::Receiver<Option<Connection>>,
    directory: PathBuf,
    turn: Arc<Semaphore>,
}

impl Questions {
    /// The switch as it is followed, the connection that it is followed by, and the folder of
    /// ovs-vswitchd's socket.
    #[must_use]
    pub fn new(
        switch: watch::Receiver<Option<Arc<Switch>>>,
        connection: watch::Receiver<Option<Connection>>,
        directory: PathBuf,
    ) -> Self {
        Self {
            switch,
            connection,
            directory,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Answers a question that is not for packets.
    ///
    /// # Errors
    ///
    /// When there is no answer, with a remedy.
    pub async fn answer(&self, question: &Question) -> Result<Value, Refusal> {
        let switch = self.switch.borrow().clone();
        let switch = switch.ok_or_else(Refusal::no_switch)?;
        let text = match question {
            // What was so once may be otherwise now.
            Question::Bridges if self.connection.borrow().is_none() => {
                return Err(Refusal::no_switch());
            }
            Question::Bridges => return Ok(bridges(&switch)),
            Question::Trace { bridge, flow } => {
                known_bridge(&switch, bridge)?;
                self.ask("ofproto/trace", &[bridge, flow]).await?
            }
            Question::Flows(bridge) => {
                known_bridge(&switch, bridge)?;
                self.ask("bridge/dump-flows", &[bridge]).await?
            }
            Question::DatapathFlows => {
                self.of_datapaths(&switch, "dpctl/dump-flows", &["-m", "--names"], None)
                    .await?
            }
            Question::Conntrack(zone) => {
                let zone = zone.map(|zone| format!("zone={zone}"));
                let zone = zone.as_deref();
                self.of_datapaths(&switch, "dpctl/dump-conntrack", &[], zone)
                    .await?
            }
            Question::Fdb(bridge) => {
                known_bridge(&switch, bridge)?;
                self.ask("fdb/show", &[bridge]).await?
            }
            Question::Bonds(port) => self.bonds(&switch, port.as_deref()).await?,
            Question::Capture(_) => {
                return Err(Refusal::bad("packets are no question with one answer"));
            }
        };
        Ok(json!({ "text": text }))
    }

    /// Asks each kind of datapath that a bridge is of.
    async fn of_datapaths(
        &self,
        switch: &Switch,
        command: &str,
        options: &[&str],
        last: Option<&str>,
    ) -> Result<String, Refusal> {
        let kinds = switch.bridges.values().map(|bridge| &bridge.datapath_type);
        let kinds: BTreeSet<&String> = kinds.collect();
        let mut text = String::new();
        for kind in &kinds {
            let name = format!("{kind}@ovs-{kind}");
            let mut arguments = options.to_vec();
            arguments.push(&name);
            arguments.extend(last);
            let answer = self.ask(command, &arguments).await?;
            if kinds.len() > 1 {
                text.push_str(&format!("{name}:\n"));
            }
            text.push_str(&answer);
        }
        Ok(text)
    }

    async fn bonds(&self, switch: &Switch, port: Option<&str>) -> Result<String, Refusal> {
        let Some(name) = port else {
            let bonds = self.ask("bond/show", &[]).await?;
            let lacp = self.ask("lacp/show", &[]).await?;
            return Ok(format!("{bonds}\n{lacp}"));
        };
        let mut ports = switch.bridges.values().flat_map(|bridge| &bridge.ports);
        let Some((_, row)) = ports.find(|(known, _)| *known == name) else {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                format!("there is no port {name:?}: /v1/bridges lists them"),
            ));
        };
        let Some(bond) = &row.bond else {
            return Err(Refusal::bad(format!(
                "port {name} is no bond: it has one interface"
            )));
        };
        let mut text = self.ask("bond/show", &[name]).await?;
        if bond.lacp {
            text.push('\n');
            text.push_str(&self.ask("lacp/show", &[name]).await?);
        }
        Ok(text)
    }

    async fn ask(&self, command: &str, arguments: &[&str]) -> Result<String, Refusal> {
        let options = Options {
            connect_timeout: ANSWER,
            call_timeout: ANSWER,
            keepalive: None,
            max_message: MAX_ANSWER,
            tls: None,
        };
        let asking = async {
            // It is never closed.
            let _turn = self.turn.acquire().await;
            let vswitchd = Unixctl::of(&self.directory, "ovs-vswitchd", &options).await?;
            vswitchd.call(command, arguments).await
        };
        match tokio::time::timeout(TURN, asking).await {
            Ok(answer) => answer.map_err(|error| refused(&error)),
            Err(_) => Err(Refusal::new(
                StatusCode::GATEWAY_TIMEOUT,
                "others ask ovs-vswitchd, too, and it was not this question's turn: ask again",
            )),
        }
    }
}

/// What an error of ovs-vswitchd means to who asked.
fn refused(error: &Error) -> Refusal {
    match error {
        Error::Unixctl { text, .. } => Refusal::bad(format!("ovs-vswitchd says: {text}")),
        error if error.is_timeout() => Refusal::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "ovs-vswitchd does not answer: {}; the issues of the OVSNode say how it is",
                chain(error)
            ),
        ),
        Error::Closed(Closed::Protocol(_)) => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "the answer is longer than {} MiB, or none: {}; ask for less",
                MAX_ANSWER >> 20,
                chain(error)
            ),
        ),
        error => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "ovs-vswitchd cannot be asked: {}; the issues of the OVSNode say what to do",
                chain(error)
            ),
        ),
    }
}

fn known_bridge(switch: &Switch, name: &str) -> Result<(), Refusal> {
    if switch.bridges.contains_key(name) {
        return Ok(());
    }
    let names: Vec<&str> = switch.bridges.keys().map(String::as_str).collect();
    let names = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    Err(Refusal::new(
        StatusCode::NOT_FOUND,
        format!("there is no bridge {name:?}; there is {names}"),
    ))
}

/// What the switch is made of.
fn bridges(switch: &Switch) -> Value {
    let all = switch.bridges.iter();
    let all: Vec<Value> = all
        .map(|(name, bridge)| show_bridge(name, bridge))
        .collect();
    json!({ "bridges": all })
}

fn show_bridge(name: &str, bridge: &Bridge) -> Value {
    let ports = bridge.ports.iter();
    let ports: Vec<Value> = ports.map(|(name, port)| show_port(name, port)).collect();
    json!({
        "name": name,
        "datapathType": bridge.datapath_type,
        "failMode": bridge.fail_mode,
        "ports": ports,
    })
}

fn show_port(name: &str, port: &Port) -> Value {
    let interfaces = port.interfaces.iter();
    let interfaces: Vec<Value> = interfaces
        .map(|(name, interface)| show_interface(name, interface))
        .collect();
    let bond = port.bond.as_ref().map(|bond| {
        // The database has the address of the active member; people know its name.
        let active = bond.active.as_ref().map(|mac| {
            let mut members = port.interfaces.iter();
            let member = members.find(|(_, member)| member.mac.as_ref() == Some(mac));
            member.map_or(mac, |(name, _)| name)
        });
        json!({ "mode": bond.mode, "lacp": bond.lacp, "active": active })
    });
    json!({ "name": name, "tag": port.tag, "bond": bond, "interfaces": interfaces })
}

fn show_interface(name: &str, interface: &Interface) -> Value {
    let state = |up: Option<bool>| up.map(|up| if up { "up" } else { "down" });
    json!({
        "name": name,
        "type": interface.kind,
        "ofport": interface.ofport,
        "adminState": state(interface.admin_up),
        "linkState": state(interface.link_up),
        "mac": interface.mac,
        "mtu": interface.mtu,
        "ifaceId": interface.iface_id,
        "attachedMac": interface.attached_mac,
        "error": interface.error,
        "ovnInstalled": interface.ovn_installed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::tests::{healthy, with_switch};

    #[test]
    fn a_switch_is_shown_with_all_its_parts() {
        let snapshot = with_switch(healthy(), |switch| {
            let bridge = switch.bridges.get_mut("br-provider").unwrap();
            bridge.fail_mode = Some("secure".into());
            let port = bridge.ports.get_mut("bond0").unwrap();
            port.tag = Some(7);
            port.bond.as_mut().unwrap().active = Some("02:00:00:00:00:02".into());
            let member = port.interfaces.get_mut("eno2").unwrap();
            member.mac = Some("02:00:00:00:00:02".into());
        });
        let shown = bridges(&snapshot.switch.unwrap());
        let provider = &shown["bridges"][1];
        assert_eq!(provider["name"], "br-provider");
        assert_eq!(provider["failMode"], "secure");
        let bond = &provider["ports"][0];
        assert_eq!(bond["tag"], 7);
        assert_eq!(
            bond["bond"],
            json!({ "mode": "balance-tcp", "lacp": true, "active": "eno2" })
        );
        let tap = &shown["bridges"][0]["ports"][0];
        assert_eq!(tap["bond"], Value::Null);
        assert_eq!(tap["interfaces"][0]["ifaceId"], "vm1");
        assert_eq!(tap["interfaces"][0]["linkState"], "up");
        assert_eq!(tap["interfaces"][0]["ovnInstalled"], true);
    }

    #[test]
    fn what_ovs_vswitchd_refuses_is_the_callers_mistake_and_its_silence_is_not() {
        let said = Error::Unixctl {
            command: "ofproto/trace".into(),
            text: "Bad openflow flow syntax".into(),
        };
        let refusal = refused(&said);
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
        assert!(refusal.text.contains("Bad openflow"), "{refusal:?}");
        let silent = Error::Timeout {
            call: "fdb/show".into(),
            after: ANSWER,
        };
        assert_eq!(refused(&silent).status, StatusCode::GATEWAY_TIMEOUT);
        let absent = Error::NotRunning {
            program: "ovs-vswitchd".into(),
            problem: "no pidfile".into(),
        };
        assert_eq!(refused(&absent).status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
