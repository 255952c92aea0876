//! From a host that Nova has just seen to one that takes workload.
//!
//! ```text
//!  (nothing) -> Initial -> Testing -> Handover -> Succeeded
//!                  \__________\__________\______-> Aborted -> (nothing)   by lifecycle or retry
//! ```
//!
//! What was reached is recorded in an annotation before the host is enabled: no host comes into
//! service because its status says so ([`crate::record`]).
//!
//! The Nova service is disabled from the first sight of the host to the end of Handover. Nova gives
//! a disabled host no server at all, so while the test server runs the service is enabled, and only
//! after Nova has confirmed that the host is in an aggregate which is reserved for the test project
//! (docs/decisions/0009).

use cobalt_api::conditions::{HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::{CheckResult, Maintenance};
use cobalt_api::names::annotations;
use jiff::SignedDuration;
use kube::ResourceExt;

use super::{checks, maintenance, offboarding};
use crate::action::Action;
use crate::fleet::Identity;
use crate::host::{Host, Workload};
use crate::pass::Pass;
use crate::record::Record;

/// Why the service of a new host is disabled, for people who look at Nova.
pub const DISABLED_REASON: &str = "CobaltCore: the host is being onboarded";
/// How old the look at a new host's servers may be.
const FRESH: i64 = 60;
/// How much longer than its Node and its Hypervisor a server has to be on a host to show that the host
/// was in service before: more than clocks differ.
const MARGIN: i64 = 600;

/// Decides.
pub fn decide(pass: &mut Pass) {
    let host = pass.host;
    let Some(known) = &host.hypervisor else {
        return;
    };
    let state = pass.state(Type::Onboarding);
    let aborted = state == Some((Status::False, Some(Reason::Aborted)));
    let retry = known
        .object
        .annotations()
        .contains_key(annotations::RETRY_ONBOARDING);
    if retry && !aborted {
        // It has begun again, or there was nothing to begin again.
        pass.act(Action::ClearRetry);
    }
    if !host.spec().lifecycle_enabled() {
        return abort(pass, "the lifecycle label of the Node is gone");
    }
    if host.leaves() || host.is_deleted() {
        return abort(pass, "the host leaves");
    }
    if host.record() == Some(Record::Pending) && claims_service(pass) {
        // Not what this operator wrote: its record would say so.
        pass.status.checks.clear();
        pass.unsay(Type::Onboarding);
    }
    let state = pass.state(Type::Onboarding);
    match state {
        None => begin(pass),
        Some((Status::True, Some(Reason::Initial | Reason::Onboarding | Reason::Testing)))
            if host.has_proof() =>
        {
            // The process that recorded it has ended before it could say so.
            pass.say(
                Type::Onboarding,
                Status::True,
                Reason::Handover,
                "waiting for traits and aggregates",
            );
            handover(pass);
        }
        Some((Status::True, Some(Reason::Initial | Reason::Onboarding))) => initial(pass),
        Some((Status::True, Some(Reason::Testing))) => testing(pass),
        Some((Status::True, Some(Reason::Handover))) => handover(pass),
        Some((Status::False, Some(Reason::Succeeded))) => {
            if let Ok(Some(identity)) = host.identity() {
                register(pass, &identity);
            }
        }
        Some((Status::False, Some(Reason::Aborted))) => {
            let failed = pass
                .status
                .checks
                .iter()
                .any(|check| check.result == CheckResult::Failed);
            if host.has_proof() {
                // It was given up after its tests: the next ones count.
                record(pass, Record::Pending);
            } else if retry || !failed {
                // Either somebody asked for it, or what had stopped it is over.
                pass.status.checks.clear();
                pass.unsay(Type::Onboarding);
                begin(pass);
            }
        }
        // An earlier operator did not get its test server removed, or wrote a word of its own.
        Some(_) => abort(pass, "it was given up"),
    }
}

/// Whether the status says that the host has passed its tests.
fn claims_service(pass: &Pass) -> bool {
    matches!(
        pass.state(Type::Onboarding),
        Some((Status::True, Some(Reason::Handover)) | (Status::False, Some(Reason::Succeeded)))
    )
}

/// Records how the host came into service, and waits for that.
fn record(pass: &mut Pass, record: Record) {
    let text = format!("it is being recorded that the host is {}", record.as_str());
    let text = pass.act_saying(Action::Record { record }, &text);
    pass.wait("Record", text, None);
}

/// Who the host is in Nova. `None` says what is waited for.
fn identity(pass: &mut Pass) -> Option<Identity> {
    let names = pass.host.names().join("\" or \"");
    match pass.host.identity() {
        Err(why) => {
            pass.wait("Nova", why, None);
            None
        }
        Ok(None) if pass.host.trouble.is_some() => {
            // It may have registered since.
            let why = pass.host.trouble.clone().unwrap_or_default();
            pass.wait("Nova", format!("Nova does not answer: {why}"), None);
            None
        }
        Ok(None) => {
            pass.waits_for_nova = true;
            let text = format!("nova-compute of \"{names}\" has not registered in Nova");
            pass.wait("NovaRegistration", text, None);
            None
        }
        Ok(Some(found)) if found.hypervisor_id.is_none() => {
            pass.waits_for_nova = true;
            let text = format!(
                "nova-compute of \"{}\" has not told its resources",
                found.host
            );
            pass.wait("NovaRegistration", text, None);
            None
        }
        Ok(Some(found)) => {
            register(pass, &found);
            Some(found)
        }
    }
}

/// Keeps the ids, also when nova-compute has registered anew under others.
fn register(pass: &mut Pass, identity: &Identity) {
    pass.status.service_id = Some(identity.service.id.clone());
    if let Some(id) = &identity.hypervisor_id {
        pass.status.hypervisor_id = Some(id.clone());
    }
}

/// Takes a host into service that was there before: enabled, or disabled by somebody else, it stays
/// as it is. What the operator itself has disabled comes back as after the tests.
fn adopt(pass: &mut Pass, identity: &Identity) {
    let reason = identity.service.disabled_reason.as_deref();
    let comes_back = !identity.is_enabled()
        && maintenance::is_own(reason.unwrap_or_default())
        && pass.host.spec().maintenance() == Maintenance::Unset;
    if comes_back {
        pass.say(
            Type::Onboarding,
            Status::True,
            Reason::Handover,
            "the host was in service before; waiting for traits and aggregates",
        );
        return handover(pass);
    }
    let text = "adopted: the host was in service before";
    pass.say(Type::Onboarding, Status::False, Reason::Succeeded, text);
}

/// Whether Nova shows that the host was in service before its Hypervisor was made. A server alone
/// does not: a host that has just registered is enabled until the operator has seen it, and may get
/// one in that moment.
fn was_in_service(host: &Host, identity: &Identity, workload: &Workload) -> bool {
    let reason = identity.service.disabled_reason.as_deref();
    let by_others = !identity.is_enabled() && !maintenance::is_own(reason.unwrap_or_default());
    if by_others && workload.servers > 0 {
        // Somebody keeps it out of service, and it stays so: nothing is enabled by adopting it.
        return true;
    }
    let margin = SignedDuration::from_secs(MARGIN);
    let made = host.made();
    if let (Some(arrived), Some(made)) = (workload.oldest, made)
        && made.duration_since(arrived) >= margin
    {
        return true;
    }
    let spec = host.spec();
    let wanted = spec.aggregates();
    let joined = |name: &String| {
        host.fleet.as_ref().is_ok_and(|fleet| {
            fleet
                .aggregates
                .get(name)
                .is_some_and(|one| one.hosts.contains(identity.host.as_str()))
        })
    };
    // In the test aggregate it was on its way, and is enabled for the tests alone.
    let on_its_way = joined(&host.settings.test_aggregate);
    // Nobody but an operator puts a host into all of its aggregates.
    identity.is_enabled() && !on_its_way && !wanted.is_empty() && wanted.iter().all(joined)
}

fn begin(pass: &mut Pass) {
    let Some(identity) = identity(pass) else {
        return;
    };
    if pass.host.has_proof() {
        return adopt(pass, &identity);
    }
    let reason = identity.service.disabled_reason.as_deref();
    if reason == Some(offboarding::NODE_GONE_IN_SERVICE) {
        return record(pass, Record::Adopted);
    }
    let oldest = pass.now - SignedDuration::from_secs(FRESH);
    let host = pass.host;
    let read = host.reads.workload.as_ref();
    let Some(workload) = read.filter(|read| read.at >= oldest) else {
        let failure = pass.act(Action::ReadWorkload {
            host: identity.host,
        });
        let text = failure
            .map_or("what runs on the host", |failure| &failure.text)
            .to_owned();
        return pass.wait("Nova", text, None);
    };
    if was_in_service(host, &identity, &workload.value) {
        return record(pass, Record::Adopted);
    }
    pass.status.checks.clear();
    pass.forgive(&checks::OF_ATTEMPT);
    pass.say(
        Type::Onboarding,
        Status::True,
        Reason::Initial,
        "the host is being prepared for its tests",
    );
    initial(pass);
}

fn skips_tests(pass: &Pass) -> bool {
    pass.host.spec().skip_tests() || pass.host.settings.skip_tests
}

fn initial(pass: &mut Pass) {
    let Some(identity) = identity(pass) else {
        return;
    };
    if identity.is_enabled() {
        return keep_away(pass, &identity);
    }
    if skips_tests(pass) {
        for name in checks::ALL {
            pass.set_check(
                name,
                CheckResult::Skipped,
                "the tests are left out for this host",
                None,
            );
        }
        return record(pass, Record::Untested);
    }
    if let Err((reason, why)) = checks::isolated(pass.host, &identity) {
        return pass.wait(reason, why, None);
    }
    for name in checks::ALL {
        pass.set_check(name, CheckResult::Pending, "", None);
    }
    pass.say(
        Type::Onboarding,
        Status::True,
        Reason::Testing,
        "the tests run",
    );
    testing(pass);
}

/// Disables the service.
fn keep_away(pass: &mut Pass, identity: &Identity) {
    let disable = Action::DisableService {
        id: identity.service.id.clone(),
        reason: DISABLED_REASON.to_owned(),
    };
    let text = pass.act_saying(disable, "the scheduler is kept away from the host");
    pass.wait("ServiceDisabled", text, None);
}

fn testing(pass: &mut Pass) {
    let Some(identity) = identity(pass) else {
        return;
    };
    match checks::decide(pass, &identity) {
        checks::Progress::Running => {}
        checks::Progress::Passed => {
            if identity.is_enabled() {
                return keep_away(pass, &identity);
            }
            // The next pass goes on to the handover.
            record(pass, Record::Tested);
        }
        checks::Progress::Failed(why) => {
            if identity.is_enabled() {
                return keep_away(pass, &identity);
            }
            let name = &pass.host.name;
            let text = format!("{why}; mend it and run `cobalt onboard retry {name}`");
            pass.say(Type::Onboarding, Status::False, Reason::Aborted, text);
        }
    }
}

fn handover(pass: &mut Pass) {
    let Some(identity) = identity(pass) else {
        return;
    };
    if !pass.host.has_proof() {
        return record(pass, Record::TakenOver);
    }
    if let Some(missing) = super::traits::missing(pass.host, &pass.status) {
        return pass.wait("Traits", missing, None);
    }
    if let Some(missing) = super::aggregates::missing(pass.host, &identity) {
        return pass.wait("Aggregates", missing, None);
    }
    if !identity.is_enabled() || identity.service.forced_down {
        let enable = Action::EnableService {
            id: identity.service.id.clone(),
        };
        let text = pass.act_saying(enable, "the scheduler is let to the host");
        return pass.wait("ServiceEnabled", text, None);
    }
    pass.say(
        Type::Onboarding,
        Status::False,
        Reason::Succeeded,
        "the host takes workload",
    );
}

/// Stops what is under way: removes the test server, then says so.
fn abort(pass: &mut Pass, why: &str) {
    if !matches!(pass.state(Type::Onboarding), Some((Status::True, _))) {
        return;
    }
    if let Some(left) = checks::clean_up(pass) {
        let text = format!("{why}; {left}");
        pass.wait("TestServer", text.clone(), None);
        return pass.say(Type::Onboarding, Status::True, Reason::Aborted, text);
    }
    pass.status.checks.clear();
    pass.say(
        Type::Onboarding,
        Status::False,
        Reason::Aborted,
        format!("given up: {why}"),
    );
}
