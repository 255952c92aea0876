//! Takes a host out of service and puts it back: the Nova service, and the Eviction that empties
//! the host.
//!
//! The wish is `spec.maintenance`; what Nova says is looked at, not remembered. While `ha`, another
//! one has the host in hand. A host whose lifecycle is not ours is left alone.
//!
//! A host in service that is about to shut down is a wish, too: its agent makes an Eviction of the
//! whole host ([`Eviction::is_for_shutdown`]) and cancels it when the host is back or stays up.
//!
//! ```text
//! open: service disabled, host drained --ended--> host is down --cancelled--> removed, enabled
//! ```

use std::sync::Arc;

use cobalt_api::conditions::{
    self, EvictionCondition, HypervisorCondition as Type, Reason, Status,
};
use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::{HypervisorSpec, Maintenance};
use kube::ResourceExt;

use super::{offboarding, onboarding};
use crate::action::Action;
use crate::fleet::Identity;
use crate::host::Host;
use crate::pass::{Pass, cut};

/// What the reason of a service begins with that was disabled for maintenance, as deployed.
const PREFIX: &str = "Hypervisor CRD: spec.maintenance=";

/// What the reason of a service begins with that was disabled because its host is about to shut
/// down. By it a new process knows that the service is to be enabled again.
const SHUTDOWN_PREFIX: &str = "Hypervisor CRD: shutdown: ";

/// How much of a reason is passed on to an Eviction. It is for people, and in many places.
const LONGEST_REASON: usize = 512;

/// Decides.
pub fn decide(pass: &mut Pass) {
    let host = pass.host;
    let spec = host.spec();
    if host.hypervisor.is_none() || host.is_deleted() {
        return;
    }
    remove_called_off(pass);
    if !spec.lifecycle_enabled() {
        return;
    }
    if matches!(pass.state(Type::Onboarding), Some((Status::True, _))) {
        return;
    }
    match spec.maintenance() {
        Maintenance::Unset => match shutdown(host).filter(|_| is_onboarded(pass)) {
            Some(eviction) => shutting_down(pass, &eviction),
            None => in_service(pass),
        },
        Maintenance::Manual | Maintenance::Auto | Maintenance::Termination => {
            out_of_service(pass, &spec);
        }
        Maintenance::Ha => {}
    }
}

/// Whether the host takes workload when nothing speaks against it.
fn is_onboarded(pass: &Pass) -> bool {
    pass.state(Type::Onboarding) == Some((Status::False, Some(Reason::Succeeded)))
}

/// The Eviction because of a shutdown that counts: one that is under way before one that has ended.
fn shutdown(host: &Host) -> Option<Arc<Eviction>> {
    let counts =
        |one: &&Arc<Eviction>| one.spec.deadline.is_some() && !(one.has_ended() && called_off(one));
    let mut all: Vec<&Arc<Eviction>> = host.shutdowns.iter().filter(counts).collect();
    all.sort_by_key(|one| (one.has_ended(), called_off(one)));
    all.first().map(|one| Arc::clone(one))
}

/// The shutdown is over: the host is back, or it stayed up.
fn called_off(eviction: &Eviction) -> bool {
    eviction.spec.cancel() || eviction.metadata.deletion_timestamp.is_some()
}

/// Removes Evictions of shutdowns that are over.
///
/// One without a deadline is of an agent that does not cancel it after the reboot: it would wait
/// until the host is disabled some day, and drain it then.
fn remove_called_off(pass: &mut Pass) {
    let host = pass.host;
    let in_service = matches!(host.identity(), Ok(Some(identity)) if identity.is_enabled());
    for eviction in &host.shutdowns {
        let gone = eviction.metadata.deletion_timestamp.is_some();
        let over = eviction.spec.cancel() && eviction.has_ended();
        let endless = eviction.spec.deadline.is_none() && in_service;
        if (over || endless) && !gone {
            remove(pass, eviction);
        }
    }
}

fn remove(pass: &mut Pass, eviction: &Eviction) {
    if let Some(uid) = eviction.uid() {
        let name = eviction.name_any();
        pass.act(Action::DeleteEviction { name, uid });
    }
}

/// The agent asks for the host to be emptied, because the host is about to shut down.
fn shutting_down(pass: &mut Pass, eviction: &Eviction) {
    let identity = match pass.host.identity() {
        Ok(Some(identity)) => identity,
        Ok(None) => return in_service(pass),
        Err(why) => return pass.wait("Nova", why, None),
    };
    let name = eviction.name_any();
    let reason = identity.service.disabled_reason.as_deref();
    let by_us = reason.is_some_and(|reason| reason.starts_with(SHUTDOWN_PREFIX));
    if eviction.has_ended() {
        if identity.is_enabled() || !by_us {
            return in_service(pass);
        }
        pass.unsay(Type::Evicting);
        let text = format!(
            "the host shuts down; it is put back into service when its agent cancels the Eviction \
             \"{name}\" after the reboot, or somebody deletes that"
        );
        return pass.wait("HostShutdown", text, None);
    }
    if called_off(eviction) {
        // Until it has ended, Nova may still be moving something.
        return pass.wait(
            "EvictionCancelled",
            "the host does not shut down any more: what is under way is being called off",
            None,
        );
    }
    if identity.is_enabled() {
        let disable = Action::DisableService {
            id: identity.service.id.clone(),
            reason: cut(format!("{SHUTDOWN_PREFIX}Eviction {name}"), 255),
        };
        let text = pass.act_saying(
            disable,
            "the host is about to shut down: the scheduler is kept away from it",
        );
        return pass.wait("ServiceDisabled", text, None);
    }
    if by_us && !host_was_disabled(pass) {
        pass.say(
            Type::HypervisorDisabled,
            Status::True,
            Reason::Succeeded,
            "the host is about to shut down: the scheduler is kept away from it",
        );
    }
    mirror(pass, eviction);
}

/// An Eviction of the whole host, which ends when the maintenance does.
fn own(eviction: &Eviction) -> bool {
    eviction
        .owner_references()
        .iter()
        .any(|owner| owner.kind == "Hypervisor" && owner.controller == Some(true))
}

fn in_service(pass: &mut Pass) {
    let host = pass.host;
    let evicted = pass.status.evicted == Some(true) || pass.condition(Type::Evicting).is_some();
    if let Some(eviction) = host
        .eviction
        .as_ref()
        .filter(|eviction| evicted && own(eviction))
    {
        if let Some(uid) = eviction.uid() {
            let name = eviction.name_any();
            let cancel = Action::DeleteEviction { name, uid };
            let text = pass.act_saying(cancel, "what is under way is being called off");
            pass.wait("EvictionCancelled", text, None);
        }
        return;
    }
    if evicted {
        pass.status.evicted = Some(false);
        pass.unsay(Type::Evicting);
    }
    if !is_onboarded(pass) {
        return;
    }
    let identity = match host.identity() {
        Ok(Some(identity)) => identity,
        Ok(None) => {
            pass.waits_for_nova = true;
            return pass.wait(
                "NovaRegistration",
                "Nova does not know the host any more",
                None,
            );
        }
        // What is not known is not changed.
        Err(_) => return,
    };
    if identity.is_enabled() && !identity.service.forced_down {
        let said = pass.state(Type::HypervisorDisabled);
        if said.is_some_and(|(status, _)| status != Status::False) {
            pass.say(
                Type::HypervisorDisabled,
                Status::False,
                Reason::Succeeded,
                "the scheduler may use the host",
            );
        }
        return;
    }
    let reason = identity
        .service
        .disabled_reason
        .as_deref()
        .unwrap_or_default();
    if is_own(reason) {
        let enable = Action::EnableService {
            id: identity.service.id.clone(),
        };
        let text = pass.act_saying(enable, "the scheduler is let to the host");
        return pass.wait("ServiceEnabled", text, None);
    }
    // Somebody had a reason: it is told, not undone.
    let text = if identity.service.forced_down {
        "Nova was told that the host is dead (forced_down)".to_owned()
    } else {
        format!("disabled in Nova by somebody else: {}", or_none(reason))
    };
    pass.say(Type::HypervisorDisabled, Status::True, Reason::Failed, text);
}

/// Whether the operator disabled a service, by the reason that Nova has. Its own condition does not
/// count: an agent could write it, and undo what a person has decided.
pub fn is_own(reason: &str) -> bool {
    reason.starts_with("Hypervisor CRD: ")
        || reason.starts_with(offboarding::NODE_GONE)
        || reason == onboarding::DISABLED_REASON
}

/// Whether the condition has to be taken back.
fn host_was_disabled(pass: &Pass) -> bool {
    matches!(
        pass.state(Type::HypervisorDisabled),
        Some((Status::True, _))
    )
}

fn or_none(text: &str) -> &str {
    if text.is_empty() {
        "no reason was given"
    } else {
        text
    }
}

/// What people who look at Nova read, kept current.
fn reason(spec: &HypervisorSpec) -> String {
    let mode = spec.maintenance();
    let mut reason = format!("{PREFIX}{}", mode.as_str());
    if let Some(why) = spec
        .maintenance_reason
        .as_deref()
        .filter(|why| !why.is_empty())
    {
        reason.push_str(": ");
        reason.push_str(why);
    }
    // Nova's limit.
    cut(reason, 255)
}

fn out_of_service(pass: &mut Pass, spec: &HypervisorSpec) {
    match pass.host.identity() {
        Err(why) => pass.wait("Nova", why, None),
        Ok(None) if was_registered(pass) && spec.maintenance() != Maintenance::Termination => {
            // Its instances may run on. Who leaves for good is looked through by the offboarding.
            let text = "Nova does not know the host any more, so nobody knows what runs on it: \
                        see whether its nova-compute service was deleted or renamed";
            pass.waits_for_nova = true;
            pass.say(Type::Evicting, Status::False, Reason::Failed, text);
            pass.wait("NovaRegistration", text, None);
        }
        Ok(None) => {
            // Nothing to move, and nobody to keep away.
            if pass.status.evicted != Some(true) {
                pass.status.evicted = Some(true);
                pass.say(
                    Type::Evicting,
                    Status::False,
                    Reason::Succeeded,
                    "Nova does not know the host: there is nothing to move",
                );
            }
        }
        Ok(Some(identity)) => {
            if disabled(pass, spec, &identity) {
                evict(pass, spec);
            } else if pass.status.evicted == Some(true) {
                // It took new instances since it was emptied.
                let text = "the host was enabled in Nova after it had been emptied";
                pass.status.evicted = Some(false);
                pass.say(Type::Evicting, Status::True, Reason::Running, text);
            }
        }
    }
}

/// Whether Nova has known the host, and nobody has emptied it since.
fn was_registered(pass: &Pass) -> bool {
    let known = pass.status.hypervisor_id.is_some() || pass.status.service_id.is_some();
    known && pass.status.evicted != Some(true)
}

/// Whether Nova says that the host is disabled, for the reason that is wanted.
fn disabled(pass: &mut Pass, spec: &HypervisorSpec, identity: &Identity) -> bool {
    let wanted = reason(spec);
    let present = identity.service.disabled_reason.as_deref();
    // The deployed operator has the mode alone; that is no reason to write it anew.
    let mode = format!("{PREFIX}{}", spec.maintenance().as_str());
    let text_is_right = present == Some(wanted.as_str()) || present == Some(mode.as_str());
    let is_disabled = !identity.is_enabled();
    if !is_disabled || !text_is_right {
        let failure = pass.act(Action::DisableService {
            id: identity.service.id.clone(),
            reason: wanted,
        });
        if let Some(failure) = failure {
            let text = failure.text.clone();
            pass.wait("ServiceDisabled", text, None);
        } else if !is_disabled {
            pass.wait(
                "ServiceDisabled",
                "the scheduler is kept away from the host",
                None,
            );
        }
    }
    if is_disabled && !host_was_disabled(pass) {
        pass.say(
            Type::HypervisorDisabled,
            Status::True,
            Reason::Succeeded,
            "the scheduler is kept away from the host",
        );
    }
    is_disabled
}

fn evict(pass: &mut Pass, spec: &HypervisorSpec) {
    let done = pass.state(Type::Evicting) == Some((Status::False, Some(Reason::Succeeded)));
    if done && pass.status.evicted == Some(true) {
        return;
    }
    let host = pass.host;
    let Some(eviction) = &host.eviction else {
        let labels = pass.transfer_labels();
        let mode = spec.maintenance();
        let why = spec
            .maintenance_reason
            .as_deref()
            .filter(|why| !why.is_empty());
        let mut reason = format!("maintenance {}", mode.as_str());
        if let Some(why) = why {
            reason.push_str(": ");
            reason.push_str(why);
        }
        let reason = cut(reason, LONGEST_REASON);
        let create = Action::CreateEviction { reason, labels };
        let text = pass.act_saying(create, "the Eviction is being made");
        pass.status.evicted = Some(false);
        pass.say(Type::Evicting, Status::True, Reason::Running, text.clone());
        return pass.wait("Eviction", text, None);
    };
    if eviction.metadata.deletion_timestamp.is_some() {
        // The one of an earlier maintenance says nothing about this one.
        return pass.wait(
            "EvictionCancelled",
            "an earlier Eviction is being called off",
            None,
        );
    }
    if eviction.is_for_shutdown() && (eviction.has_ended() || eviction.spec.cancel()) {
        // It was about a shutdown and says nothing about this maintenance, which gets its own.
        if eviction.has_ended() && !eviction.spec.cancel() {
            remove(pass, eviction);
        }
        return pass.wait(
            "EvictionCancelled",
            "the Eviction of a shutdown is being removed",
            None,
        );
    }
    if eviction.spec.dry_run() || !eviction.spec.instances.is_empty() {
        let text = format!(
            "the Eviction \"{}\" does not empty the host; it is waited for until it is deleted",
            host.name
        );
        pass.say(Type::Evicting, Status::True, Reason::Running, text.clone());
        return pass.wait("Eviction", text, None);
    }
    if is_outdated(pass, eviction) {
        let mut text = "the host was enabled in Nova after it had been emptied: ".to_owned();
        if own(eviction) {
            text.push_str("it is emptied again");
            remove(pass, eviction);
        } else {
            text.push_str(&format!(
                "delete the Eviction \"{}\" to empty it again",
                eviction.name_any()
            ));
        }
        return pass.wait("Eviction", text, None);
    }
    mirror(pass, eviction);
}

/// Whether the host took new instances after its Eviction had ended.
fn is_outdated(pass: &Pass, eviction: &Eviction) -> bool {
    let evicting = pass
        .condition(Type::Evicting)
        .filter(|one| one.status == "True");
    let status = eviction.status.as_ref();
    let finished = status.and_then(|status| status.finished_at.as_ref());
    match (evicting, finished) {
        (Some(evicting), Some(finished)) => evicting.last_transition_time.0 > finished.0,
        _ => false,
    }
}

/// Says of the host what its Eviction says.
fn mirror(pass: &mut Pass, eviction: &Eviction) {
    let status = eviction.status.as_ref();
    let all = status.map_or(&[][..], |status| status.conditions.as_slice());
    let found = conditions::find(all, EvictionCondition::Evicting);
    let over = conditions::is_false(all, EvictionCondition::Evicting);
    let reason = conditions::reason(all, EvictionCondition::Evicting);
    let said = found.map(|found| found.message.clone()).unwrap_or_default();
    if !over {
        let wait = status.and_then(|status| status.waiting_for.as_ref());
        let wait = wait.and_then(|wait| wait.message.clone());
        let text = match (found, wait) {
            (None, _) => "the Eviction has not begun".to_owned(),
            (Some(_), Some(wait)) => wait,
            (Some(_), None) => said,
        };
        pass.status.evicted = Some(false);
        pass.say(Type::Evicting, Status::True, Reason::Running, text.clone());
        return pass.wait("Eviction", text, None);
    }
    if reason == Some(Reason::Succeeded) {
        pass.status.evicted = Some(true);
        return pass.say(Type::Evicting, Status::False, Reason::Succeeded, said);
    }
    // It ended, and the host is not empty: never taken for a success.
    pass.status.evicted = Some(false);
    let reason = reason.unwrap_or(Reason::Failed);
    pass.say(Type::Evicting, Status::False, reason, said.clone());
    let text = format!(
        "the Eviction ended as {}: {said}; delete it to begin again",
        reason.as_str()
    );
    pass.wait("Eviction", text, None);
}
