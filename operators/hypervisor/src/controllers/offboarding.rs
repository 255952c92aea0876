//! A host that leaves for good: nothing of it stays behind in Nova and Placement, and nothing that
//! lives is deleted.
//!
//! ```text
//!  evicted -> no domains -> agents gone -> empty twice -> allocations -> service -> providers -> nothing left
//! ```
//!
//! Nova removes the provider and the aggregate memberships with the service, and fails for ever if
//! somebody has removed the provider before (docs/decisions/0010); what it leaves is removed after.
//! Each step looks at what is there, so it may be repeated after a crash at any point. The end is
//! said only when a fresh look finds no service, no provider and no allocation.

use std::collections::BTreeSet;

use cobalt_api::conditions::{HypervisorCondition as Type, Reason, Status};
use cobalt_api::names::finalizers;
use jiff::SignedDuration;
use kube::ResourceExt;

use crate::action::Action;
use crate::eviction::witness::Report;
use crate::fleet::{Identity, NovaAggregate};
use crate::host::{Host, Read, Remains};
use crate::objects;
use crate::pass::Pass;

/// Why the service of a host without a Node is disabled, for people who look at Nova.
pub const NODE_GONE: &str = "CobaltCore: the Node of the host is gone";
/// The same for a host that was in service: it comes back without tests when its Node does. Nova keeps
/// that when the Hypervisor and its record are gone.
pub const NODE_GONE_IN_SERVICE: &str =
    "CobaltCore: the Node of the host is gone; the host was in service";
/// How old a look may be that something is deleted by.
const FRESH: i64 = 10;
/// How long it is believed that libvirt has no domain on a host that is drained and disabled: until
/// the agents have left.
const ASKED_FOR: i64 = 60;
/// Between the two looks that find a host empty.
const APART: i64 = 5;

/// Decides.
pub fn decide(pass: &mut Pass) {
    let host = pass.host;
    let Some(known) = &host.hypervisor else {
        return;
    };
    let held = known
        .object
        .finalizers()
        .iter()
        .any(|one| one == finalizers::REGISTERED_HOST);
    if !host.spec().lifecycle_enabled() {
        // The host is not ours to remove.
        if host.is_deleted() && held {
            pass.act(Action::Release);
        }
        return;
    }
    if host.is_deleted() && host.node.is_none() && host.reads.node.is_none() {
        let text = pass.act_saying(Action::ReadNode, "the Node is looked for");
        return pass.wait("Offboarding", text, None);
    }
    if !host.leaves() {
        pass.unsay(Type::Offboarded);
        // The Node is there: the object is made anew from it. A test server that this one has made
        // would be nobody's then.
        let under_way = matches!(pass.state(Type::Onboarding), Some((Status::True, _)));
        if host.is_deleted() && held && !under_way {
            pass.act(Action::Release);
        }
        return;
    }
    if pass.state(Type::Offboarded) == Some((Status::True, Some(Reason::Offboarded))) {
        if host.is_deleted() && held {
            pass.act(Action::Release);
        }
        return;
    }
    match next(pass) {
        Ok(()) => {
            pass.say(
                Type::Offboarded,
                Status::True,
                Reason::Offboarded,
                "nothing of the host is left in Nova and Placement",
            );
            pass.status.service_id = None;
            pass.status.hypervisor_id = None;
            pass.wake_in(0);
        }
        Err(blocker) => {
            pass.wait("Offboarding", blocker.clone(), None);
            pass.say(
                Type::Offboarded,
                Status::False,
                Reason::Offboarding,
                blocker,
            );
        }
    }
}

/// Goes one step on, or says what it waits for.
fn next(pass: &mut Pass) -> Result<(), String> {
    let host = pass.host;
    if let Some((Status::True, _)) = pass.state(Type::Onboarding) {
        return Err("onboarding is being given up".to_owned());
    }
    let identity = host.identity()?;
    if host.node.is_some() {
        if pass.state(Type::Evicting) != Some((Status::False, Some(Reason::Succeeded))) {
            return Err("the host is being emptied".to_owned());
        }
        libvirt_is_empty(pass)?;
        agents_gone(pass)?;
    }
    if let Some(found) = identity.as_ref().filter(|found| found.is_enabled()) {
        // Without a Node nobody else has kept the scheduler away.
        let onboarded =
            pass.state(Type::Onboarding) == Some((Status::False, Some(Reason::Succeeded)));
        let reason = if onboarded && host.has_proof() {
            NODE_GONE_IN_SERVICE
        } else {
            NODE_GONE
        };
        return Err(pass.act_saying(
            Action::DisableService {
                id: found.service.id.clone(),
                reason: reason.to_owned(),
            },
            "the scheduler is kept away from the host",
        ));
    }
    let disabled = pass.state(Type::HypervisorDisabled);
    if identity.is_some() && !matches!(disabled, Some((Status::True, _))) {
        pass.say(
            Type::HypervisorDisabled,
            Status::True,
            Reason::Succeeded,
            "the scheduler is kept away from the host, which leaves",
        );
    }
    let remains = look(pass, identity.as_ref())?;
    if !remains.is_empty() {
        pass.wake_in(FRESH);
        return Err(left_over(&host.name, remains));
    }
    let twice = host.reads.empty.is_some_and(|empty| {
        empty.last.duration_since(empty.first) >= SignedDuration::from_secs(APART)
    });
    if !twice {
        pass.wake_in(APART);
        return Err("the host is empty; it is looked at a second time".to_owned());
    }
    let consumers: Vec<String> = remains
        .providers
        .iter()
        .flat_map(|(_, consumers)| consumers)
        .cloned()
        .collect();
    if !consumers.is_empty() {
        return Err(pass.act_saying(
            Action::DeleteAllocations { consumers },
            "allocations of consumers that are gone are being released",
        ));
    }
    if let Some(id) = &remains.service {
        let name = identity.map_or_else(|| host.name.clone(), |found| found.host);
        return Err(pass.act_saying(
            Action::DeleteService {
                id: id.clone(),
                host: name,
            },
            "the service is being removed",
        ));
    }
    if !remains.providers.is_empty() {
        let ids = remains.providers.iter().map(|(id, _)| id.clone()).collect();
        let names = provider_names(host, identity.as_ref());
        return Err(pass.act_saying(
            Action::DeleteProviders { ids, names },
            "a resource provider that Nova has left behind is being removed",
        ));
    }
    if let Some(found) = identity {
        // The list is older than the look.
        pass.waits_for_nova = true;
        return Err(format!(
            "nova-compute of \"{}\" is still listed; stop it",
            found.host
        ));
    }
    let left: Vec<&str> = aggregates_left(host);
    if !left.is_empty() {
        pass.waits_for_nova = true;
        return Err(format!(
            "Nova still has the host in the aggregates {}",
            left.join(", ")
        ));
    }
    Ok(())
}

fn aggregates_left(host: &Host) -> Vec<&str> {
    let names = host.names();
    let Ok(fleet) = &host.fleet else {
        return Vec::new();
    };
    let is_in = |one: &&NovaAggregate| names.iter().any(|name| one.hosts.contains(*name));
    fleet
        .aggregates
        .values()
        .filter(is_in)
        .map(|one| one.name.as_str())
        .collect()
}

/// What is left of the host, as it was a moment ago.
fn look<'a>(pass: &mut Pass<'a>, identity: Option<&Identity>) -> Result<&'a Remains, String> {
    let oldest = pass.now - SignedDuration::from_secs(FRESH);
    let read = pass
        .host
        .reads
        .remains
        .as_ref()
        .filter(|read| read.at > oldest);
    let due = pass.host.reads.empty.is_some_and(|empty| {
        empty.first == empty.last
            && pass.now.duration_since(empty.first) >= SignedDuration::from_secs(APART)
    });
    match read.filter(|_| !due) {
        Some(read) => Ok(&read.value),
        None => {
            let host = identity.map_or(&pass.host.name, |found| &found.host);
            let read = Action::ReadRemains {
                host: host.clone(),
                names: provider_names(pass.host, identity),
            };
            let text = "Nova and Placement are asked what is left";
            Err(pass.look_saying(read, "Offboarding", text))
        }
    }
}

/// What the host's provider may be called: what Nova says its hypervisor calls itself; when Nova does
/// not list it any more, the names of the host.
fn provider_names(host: &Host, identity: Option<&Identity>) -> BTreeSet<String> {
    let fleet = host.fleet.as_ref().ok();
    let hostname = identity.and_then(|found| fleet?.hostname_of(&found.host));
    match hostname {
        Some(hostname) => BTreeSet::from([hostname.to_owned()]),
        None => host.names().into_iter().map(ToOwned::to_owned).collect(),
    }
}

fn left_over(host: &str, remains: &Remains) -> String {
    if remains.cell_down {
        return "the database of the host's Nova cell does not answer: nobody knows which servers \
                are on the host"
            .to_owned();
    }
    if let Some((migration, server)) = remains.unconfirmed.first_key_value() {
        let more = match remains.unconfirmed.len() {
            1 => String::new(),
            several => format!(" and {} more", several - 1),
        };
        return format!(
            "the server {server} (migration {migration}){more} has been resized or migrated off the \
             host, and a revert brings it back: confirm or revert it"
        );
    }
    let all = remains.servers.union(&remains.alive);
    let first: Vec<&str> = all.clone().take(5).map(String::as_str).collect();
    let count = all.count();
    let more = if count > first.len() { ", ..." } else { "" };
    format!(
        "{count} instances or migrations are left on the host ({}{more}): `cobalt drain {host}` moves \
         instances, or delete them",
        first.join(", ")
    )
}

/// While its agent is still there, libvirt is asked whether it has a domain: an eviction that has
/// succeeded may be old, and Nova may not know what is there. An agent that cannot be asked any more
/// says nothing.
fn libvirt_is_empty(pass: &mut Pass) -> Result<(), String> {
    if let Some((Status::True, _)) = pass.state(Type::AgentPodsEvicted) {
        return Ok(());
    }
    let age = |read: &Read<Report>| pass.now.duration_since(read.at);
    let read = pass.host.reads.libvirt.as_ref();
    let read = read.filter(|read| match &read.value {
        Report::Domains(all) if !all.is_empty() => age(read) < SignedDuration::from_secs(FRESH),
        _ => age(read) < SignedDuration::from_secs(ASKED_FOR),
    });
    let Some(read) = read else {
        let text = "libvirt is asked what is left";
        return Err(pass.look_saying(Action::ReadDomains, "Offboarding", text));
    };
    let Report::Domains(domains) = &read.value else {
        return Ok(());
    };
    let Some((first, domain)) = domains.first_key_value() else {
        return Ok(());
    };
    pass.wake_in(FRESH);
    Err(format!(
        "libvirt has {} domains on the host although it was drained ({first}, {}, is the first): \
         see whether Nova knows them, and move or remove them",
        domains.len(),
        domain.state
    ))
}

/// The pods of agents leave before the service does: a nova-compute that runs would come back.
fn agents_gone(pass: &mut Pass) -> Result<(), String> {
    let oldest = pass.now - SignedDuration::from_secs(FRESH);
    if let Some((Status::True, _)) = pass.state(Type::AgentPodsEvicted) {
        return Ok(());
    }
    let host = pass.host;
    let (Some(node), Some(known)) = (&host.node, &host.hypervisor) else {
        return Ok(());
    };
    if !objects::is_due(node, &known.object) {
        return Err("the node is being tainted, so that the pods of the agents leave".to_owned());
    }
    let Some(read) = host.reads.pods.as_ref().filter(|read| read.at > oldest) else {
        let text = "the pods of the agents are looked for";
        return Err(pass.look_saying(Action::ReadPods, "Offboarding", text));
    };
    let judged = objects::judge(&read.value, None);
    let gone = judged.status == Status::True;
    let text = judged.message.clone();
    pass.say(
        judged.condition,
        judged.status,
        judged.reason,
        judged.message,
    );
    if gone {
        return Ok(());
    }
    pass.wake_in(FRESH);
    Err(text)
}
