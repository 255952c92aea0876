//! Which unit speaks for a service of the host, and what it says. Pure.
//!
//! A service has several forms: libvirt is one daemon or one per driver, each started by its own
//! unit or, on demand, by its socket. Debian's unit of Open vSwitch is only a name: it stays active
//! whatever becomes of the daemons behind it.

use std::collections::BTreeMap;

use cobalt_api::conditions::{HypervisorCondition, Reason, Status};

use crate::context::Statement;

/// A service of the host.
#[derive(Debug)]
pub struct Service {
    /// The condition that tells about it.
    pub condition: HypervisorCondition,
    /// The units that can be it, the usual one first.
    pub forms: &'static [Form],
    /// The sockets that start it on demand.
    pub sockets: &'static [&'static str],
}

/// A unit, and the daemons that have to run for it to be of any use.
#[derive(Debug)]
pub struct Form {
    /// The unit.
    pub unit: &'static str,
    /// Where they are installed they have to be active, too.
    pub daemons: &'static [&'static str],
}

const fn plain(unit: &'static str) -> Form {
    Form { unit, daemons: &[] }
}

/// libvirt.
pub const LIBVIRT: Service = Service {
    condition: HypervisorCondition::LibvirtdService,
    forms: &[
        plain("libvirtd.service"),
        plain("virtqemud.service"),
        plain("virtchd.service"),
    ],
    sockets: &["libvirtd.socket", "virtqemud.socket", "virtchd.socket"],
};

/// Open vSwitch.
pub const OPEN_VSWITCH: Service = Service {
    condition: HypervisorCondition::OpenvswitchService,
    forms: &[
        Form {
            unit: "openvswitch-switch.service",
            daemons: &["ovs-vswitchd.service", "ovsdb-server.service"],
        },
        Form {
            unit: "openvswitch.service",
            daemons: &["ovs-vswitchd.service", "ovsdb-server.service"],
        },
        Form {
            unit: "ovs-vswitchd.service",
            daemons: &["ovsdb-server.service"],
        },
    ],
    sockets: &[],
};

/// All of them.
pub const SERVICES: [&Service; 2] = [&LIBVIRT, &OPEN_VSWITCH];

/// Every unit that the services are made of.
#[must_use]
pub fn units() -> Vec<&'static str> {
    let mut all: Vec<&str> = SERVICES
        .iter()
        .flat_map(|service| {
            let forms = service.forms.iter();
            forms
                .flat_map(|form| std::iter::once(form.unit).chain(form.daemons.iter().copied()))
                .chain(service.sockets.iter().copied())
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What systemd says of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitState {
    /// `loaded`, `not-found`, `masked`, ...
    pub load: String,
    /// `active`, `inactive`, `failed`, ...
    pub active: String,
    /// More precisely, in the words of its type: `running`, `exited`, `auto-restart`, ...
    pub sub: String,
}

impl UnitState {
    fn installed(&self) -> bool {
        self.load == "loaded"
    }

    fn verdict(&self) -> Verdict {
        match self.active.as_str() {
            // It serves while it reads its configuration again.
            "active" | "reloading" | "refreshing" => Verdict::Running,
            "failed" => Verdict::Failed,
            "activating" => Verdict::Starting,
            "inactive" | "deactivating" | "maintenance" => Verdict::Stopped,
            _ => Verdict::Unknown,
        }
    }
}

/// What becomes of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It serves, or begins to when somebody asks.
    Running,
    /// It is about to.
    Starting,
    /// It does not serve.
    Stopped,
    /// It does not serve, and not because somebody wanted that.
    Failed,
    /// None of its forms is installed.
    NotInstalled,
    /// systemd has a word for it that we do not know, or is not there.
    Unknown,
}

impl Verdict {
    fn condition(self) -> (Status, Reason) {
        match self {
            Self::Running => (Status::True, Reason::Running),
            Self::Starting | Self::Stopped | Self::NotInstalled => (Status::False, Reason::Stopped),
            Self::Failed => (Status::False, Reason::Failed),
            Self::Unknown => (Status::Unknown, Reason::Failed),
        }
    }
}

/// What is said of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// What becomes of it.
    pub verdict: Verdict,
    /// The condition.
    pub statement: Statement,
}

/// What is said while systemd is away: nothing that was true before is true for sure.
#[must_use]
pub fn disconnected(reason: Reason, why: &str) -> Judgement {
    Judgement {
        verdict: Verdict::Unknown,
        statement: Statement {
            status: Status::Unknown,
            reason,
            message: format!("not known: {why}"),
        },
    }
}

/// What the units of a service say together.
#[must_use]
pub fn judge(service: &Service, units: &BTreeMap<&'static str, UnitState>) -> Judgement {
    let (verdict, message) = speak(service, units);
    let (status, reason) = verdict.condition();
    Judgement {
        verdict,
        statement: Statement {
            status,
            reason,
            message,
        },
    }
}

fn speak(service: &Service, units: &BTreeMap<&'static str, UnitState>) -> (Verdict, String) {
    let find = |unit: &'static str| units.get(unit).map(|state| (unit, state));
    let installed: Vec<(Verdict, String)> = service
        .forms
        .iter()
        .filter_map(|form| {
            let (unit, state) = find(form.unit).filter(|(_, state)| state.installed())?;
            let daemons = form.daemons.iter().filter_map(|daemon| find(daemon));
            Some(form_says(unit, state, daemons))
        })
        .collect();
    // A form that runs speaks before one that is left over from another installation. A failure
    // speaks before an idle socket: the next one who asks would fail, too.
    for wanted in [Verdict::Running, Verdict::Failed, Verdict::Starting] {
        if let Some(said) = installed.iter().find(|(verdict, _)| *verdict == wanted) {
            return said.clone();
        }
    }
    let socket = service
        .sockets
        .iter()
        .filter_map(|socket| find(socket))
        .find(|(_, state)| state.installed() && state.verdict() == Verdict::Running);
    if let Some((unit, state)) = socket {
        let message = format!("{}: the service starts on demand", tell(unit, state));
        return (Verdict::Running, message);
    }
    if let Some(said) = installed.into_iter().next() {
        return said;
    }
    let Some((unit, state)) = service.forms.iter().find_map(|form| find(form.unit)) else {
        return (Verdict::Unknown, "systemd has not told yet".to_owned());
    };
    let why = match state.load.as_str() {
        "not-found" => "it is not installed",
        "masked" => "it is masked",
        _ => "systemd cannot use its unit file",
    };
    let verdict = match state.load.as_str() {
        "not-found" | "masked" => Verdict::NotInstalled,
        _ => Verdict::Failed,
    };
    (verdict, format!("{}: {why}", tell(unit, state)))
}

/// A unit is what the worst of its daemons is.
fn form_says<'a>(
    unit: &str,
    state: &UnitState,
    daemons: impl Iterator<Item = (&'static str, &'a UnitState)>,
) -> (Verdict, String) {
    let own = (state.verdict(), tell(unit, state));
    if own.0 != Verdict::Running {
        return own;
    }
    let mut down: Vec<(Verdict, String)> = daemons
        .filter(|(_, daemon)| daemon.installed() && daemon.verdict() != Verdict::Running)
        .map(|(name, daemon)| (daemon.verdict(), tell(name, daemon)))
        .collect();
    down.sort_by_key(|(verdict, _)| *verdict != Verdict::Failed);
    match down.into_iter().next() {
        None => own,
        Some((verdict, daemon)) => (verdict, format!("{daemon}, although {}", own.1)),
    }
}

fn tell(unit: &str, state: &UnitState) -> String {
    let UnitState { load, active, sub } = state;
    if sub.is_empty() || sub == active {
        format!("{unit} is {active}, {load}")
    } else {
        format!("{unit} is {active} ({sub}), {load}")
    }
}

#[cfg(test)]
mod tests;
