//! The tests of a new host. Each has a result, a message, a deadline; a failed one ends them all
//! after a number of attempts.

use cobalt_api::conditions::{self, HypervisorCondition as Type, OvsNodeCondition, Status};
use cobalt_api::hypervisor::CheckResult;
use jiff::{SignedDuration, Timestamp};

use crate::action::Action;
use crate::fleet::Identity;
use crate::host::{Host, TestServer};
use crate::pass::Pass;

/// The node agent reaches libvirt.
const LIBVIRT: &str = "libvirt";
/// The Open vSwitch agent finds all bridges healthy.
const BRIDGES: &str = "bridges";
/// A server boots on the host.
const BOOT: &str = "boot";
/// Its disk is a volume.
const STORAGE: &str = "storage";
/// It moves to another host.
const OUT: &str = "migrate-out";
/// It comes back.
const IN: &str = "migrate-in";

/// All of them, in the order in which they run.
pub const ALL: [&str; 6] = [LIBVIRT, BRIDGES, BOOT, STORAGE, OUT, IN];
const WITH_SERVER: [&str; 4] = [BOOT, STORAGE, OUT, IN];
/// Actions whose failures end an attempt, and count for that one only.
pub const OF_ATTEMPT: [&str; 2] = [Action::CREATE_TEST, Action::MIGRATE_TEST];

/// How often Nova is asked about the test server; it tells nobody by itself.
const POLL: i64 = 3;

/// How the tests do.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// They are under way; the pass says what is waited for.
    Running,
    /// All passed or were left out, and nothing is left of them.
    Passed,
    /// One failed for good, and nothing is left of them.
    Failed(String),
}

/// The name of the test server: unique to this life of the Hypervisor, and a host name, because the
/// guest is called so and shows it on its console.
#[must_use]
pub fn server_name(host: &Host) -> String {
    let uid = host
        .hypervisor
        .as_ref()
        .and_then(|known| known.object.metadata.uid.as_deref());
    let mut name: String = host.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    // With the UID of 36 characters that makes the 63 that a host name may have.
    name.truncate(19);
    format!("ohooc--{name}-{}", uid.unwrap_or_default())
}

/// Whether the host is kept for the test project alone.
///
/// # Errors
///
/// Says what is missing.
pub fn isolated(host: &Host, identity: &Identity) -> Result<(), Blocker> {
    let project = &host
        .testbed
        .as_ref()
        .map_err(|why| ("TestSettings", why.clone()))?
        .id;
    reserved(host, identity, project).map_err(|why| ("TestAggregate", why))
}

/// What is waited for, in one word and in many.
pub type Blocker = (&'static str, String);

fn reserved(host: &Host, identity: &Identity, project: &str) -> Result<(), String> {
    let name = &host.settings.test_aggregate;
    let fleet = host.fleet.as_ref().map_err(Clone::clone)?;
    let Some(aggregate) = fleet.aggregates.get(name) else {
        return Err(format!(
            "there is no aggregate \"{name}\" in Nova: make it, with filter_tenant_id set to the \
             id of the test project"
        ));
    };
    if !aggregate.hosts.contains(identity.host.as_str()) {
        return Err(host.or_failure(
            Action::JOIN_AGGREGATE,
            format!("the host is being put into the aggregate \"{name}\""),
        ));
    }
    // Nova takes any key that begins so, each with a list of projects.
    let mut filters = aggregate
        .metadata
        .iter()
        .filter(|(key, _)| key.starts_with("filter_tenant_id"))
        .peekable();
    if filters.peek().is_none() {
        return Err(format!(
            "the aggregate \"{name}\" is open to all projects: set its filter_tenant_id to \
             {project}, the test project"
        ));
    }
    let only_tests = filters.all(|(_, value)| value.split(',').all(|one| one.trim() == project));
    if !only_tests {
        return Err(format!(
            "filter_tenant_id of the aggregate \"{name}\" has to be {project}, the test project, \
             alone"
        ));
    }
    Ok(())
}

/// Goes one step on.
pub fn decide(pass: &mut Pass, identity: &Identity) -> Progress {
    for name in ALL {
        if pass.check(name).is_none() {
            // An earlier operator began the tests.
            pass.set_check(name, CheckResult::Pending, "", None);
        }
    }
    libvirt(pass);
    bridges(pass);
    for name in [LIBVIRT, BRIDGES] {
        match result(pass, name) {
            CheckResult::Failed => return failed(pass, name),
            CheckResult::Passed | CheckResult::Skipped => {}
            CheckResult::Pending | CheckResult::Running => {
                let deadline = deadline(pass, name);
                let text = message(pass, name);
                pass.wait("Check", format!("{name}: {text}"), deadline);
                if let Some(deadline) = deadline {
                    pass.wake_at(deadline);
                }
                return Progress::Running;
            }
        }
    }
    with_server(pass, identity)
}

/// A check of the host alone: passed, or not yet until its deadline.
fn local(pass: &mut Pass, name: &str, good: Result<String, String>) {
    if matches!(
        result(pass, name),
        CheckResult::Passed | CheckResult::Failed
    ) {
        return;
    }
    match good {
        Ok(text) => pass.set_check(name, CheckResult::Passed, text, None),
        Err(text) => {
            pass.set_check(name, CheckResult::Running, text.clone(), None);
            if deadline(pass, name).is_some_and(|deadline| pass.now >= deadline) {
                pass.set_check(name, CheckResult::Failed, text, None);
            }
        }
    }
}

fn libvirt(pass: &mut Pass) {
    let found = pass.condition(Type::LibVirtConnection);
    let good = match found {
        Some(condition) if condition.status == Status::True.as_str() => {
            let version = pass.status.lib_virt_version.as_deref().unwrap_or("unknown");
            Ok(format!("libvirt {version} answers"))
        }
        Some(condition) => Err(format!("libvirt does not answer: {}", condition.message)),
        None => Err("the node agent has not reported yet".to_owned()),
    };
    local(pass, LIBVIRT, good);
}

fn bridges(pass: &mut Pass) {
    let host = pass.host;
    let Some(status) = host.ovs.as_ref().and_then(|ovs| ovs.status.as_ref()) else {
        let text = "there is no OVSNode: the Open vSwitch agent does not run here";
        return pass.set_check(BRIDGES, CheckResult::Skipped, text, None);
    };
    let good = match conditions::find(&status.conditions, OvsNodeCondition::AllBridgesHealthy) {
        Some(found) if found.status == Status::True.as_str() => Ok(found.message.clone()),
        Some(found) => Err(found.message.clone()),
        None => Err("the Open vSwitch agent has not looked at the bridges yet".to_owned()),
    };
    local(pass, BRIDGES, good);
}

fn result(pass: &Pass, name: &str) -> CheckResult {
    pass.check(name)
        .map_or(CheckResult::Pending, |check| check.result)
}

fn message(pass: &Pass, name: &str) -> String {
    pass.check(name)
        .and_then(|check| check.message.clone())
        .unwrap_or_default()
}

/// When a check that runs has failed.
fn deadline(pass: &Pass, name: &str) -> Option<Timestamp> {
    let since = pass.check(name)?.since.as_ref()?.0;
    let time = SignedDuration::try_from(pass.host.settings.test_deadline).ok()?;
    since.checked_add(time).ok()
}

/// Ends with a failure, once nothing is left of the tests.
fn failed(pass: &mut Pass, name: &str) -> Progress {
    let text = format!("the check {name} failed: {}", message(pass, name));
    match clean_up(pass) {
        Some(left) => {
            pass.wait("TestServer", left, None);
            Progress::Running
        }
        None => Progress::Failed(text),
    }
}

/// Removes test servers. `None`: none is left; else what is waited for.
pub fn clean_up(pass: &mut Pass) -> Option<String> {
    let begun = |name: &&str| {
        !matches!(
            result(pass, name),
            CheckResult::Pending | CheckResult::Skipped
        )
    };
    let inherited = pass.status.checks.is_empty();
    if !inherited && !WITH_SERVER.iter().any(begun) {
        return None;
    }
    if let Err(why) = &pass.host.testbed {
        return Some(format!("the test server cannot be looked for: {why}"));
    }
    let servers = match servers(pass) {
        Ok(servers) => servers,
        Err(why) => return Some(why),
    };
    if servers.is_empty() {
        return None;
    }
    let ids: Vec<String> = servers
        .iter()
        .filter(|server| server.task.as_deref() != Some("deleting"))
        .map(|server| server.id.clone())
        .collect();
    let failure = if ids.is_empty() {
        None
    } else {
        pass.act(Action::DeleteTest { ids })
    };
    Some(failure.map_or_else(
        || "the test server is being removed".to_owned(),
        |failure| failure.text.clone(),
    ))
}

/// The test servers, as Nova had them a moment ago.
fn servers<'a>(pass: &mut Pass<'a>) -> Result<&'a [TestServer], String> {
    let oldest = pass.now - SignedDuration::from_secs(POLL);
    let read = pass.host.reads.test.as_ref();
    match read.filter(|read| read.at > oldest) {
        Some(read) => {
            pass.wake_at(read.at + SignedDuration::from_secs(POLL));
            Ok(&read.value)
        }
        None => {
            let name = server_name(pass.host);
            let text = "Nova is asked about the test server";
            Err(pass.look_saying(Action::ReadTest { name }, "TestServer", text))
        }
    }
}

fn with_server(pass: &mut Pass, identity: &Identity) -> Progress {
    if WITH_SERVER.iter().all(|name| {
        matches!(
            result(pass, name),
            CheckResult::Passed | CheckResult::Skipped
        )
    }) {
        return match clean_up(pass) {
            Some(left) => {
                pass.wait("TestServer", left, None);
                Progress::Running
            }
            None => Progress::Passed,
        };
    }
    if let Some(name) = WITH_SERVER
        .iter()
        .find(|name| result(pass, name) == CheckResult::Failed)
    {
        return try_again(pass, name);
    }
    if let Err((reason, why)) = isolated(pass.host, identity) {
        pass.wait(reason, why, None);
        return Progress::Running;
    }
    let servers = match servers(pass) {
        Ok(servers) => servers,
        Err(why) => {
            if pass.host.failures.contains_key(Action::READ_TEST) {
                pass.wait("Nova", why, None);
            } else {
                pass.wait_on(&why);
            }
            return Progress::Running;
        }
    };
    match servers {
        [] => boot(pass, identity),
        [server] => follow(pass, identity, server),
        // Nova was asked twice, because the answer to the first time was lost.
        [_, others @ ..] => {
            let ids = others.iter().map(|server| server.id.clone()).collect();
            pass.act(Action::DeleteTest { ids });
            pass.wait("TestServer", "a second test server is being removed", None);
        }
    }
    Progress::Running
}

/// A failed attempt is cleaned up, and followed by another one if there may be one.
fn try_again(pass: &mut Pass, name: &str) -> Progress {
    let attempt = pass
        .check(BOOT)
        .and_then(|check| check.attempt)
        .unwrap_or(1);
    if attempt >= pass.host.settings.test_attempts {
        return failed(pass, name);
    }
    let text = message(pass, name);
    if let Some(left) = clean_up(pass) {
        pass.wait("TestServer", format!("{name} failed: {text}; {left}"), None);
        return Progress::Running;
    }
    pass.forgive(&OF_ATTEMPT);
    for name in WITH_SERVER {
        pass.set_check(name, CheckResult::Pending, "", None);
    }
    let text = format!("attempt {attempt} failed at {name}: {text}");
    pass.set_check(BOOT, CheckResult::Running, text.clone(), Some(attempt + 1));
    pass.wait("Check", text, None);
    pass.wake_in(POLL);
    Progress::Running
}

fn fail(pass: &mut Pass, name: &str, text: impl Into<String>) {
    let attempt = pass.check(name).and_then(|check| check.attempt);
    let text = text.into();
    pass.set_check(name, CheckResult::Failed, text.clone(), attempt);
    pass.wait("Check", format!("{name} failed: {text}"), None);
    pass.wake_in(0);
}

/// Keeps a check running, or fails it at its deadline.
fn keep(pass: &mut Pass, name: &str, text: &str) {
    let attempt = pass.check(name).and_then(|check| check.attempt);
    pass.set_check(name, CheckResult::Running, text, attempt);
    let deadline = deadline(pass, name);
    if deadline.is_some_and(|deadline| pass.now >= deadline) {
        return fail(pass, name, format!("it took too long: {text}"));
    }
    pass.wait("Check", format!("{name}: {text}"), deadline);
}

/// Asks for the test server.
fn boot(pass: &mut Pass, identity: &Identity) {
    let host = pass.host;
    if [OUT, IN, STORAGE]
        .iter()
        .any(|name| result(pass, name) != CheckResult::Pending)
    {
        return fail(pass, BOOT, "the test server is gone");
    }
    if !identity.is_enabled() {
        // It is kept for the test project by now, and Nova gives a disabled host no server.
        let enable = Action::EnableService {
            id: identity.service.id.clone(),
        };
        let text = pass.act_saying(enable, "the test project is let to the host");
        return pass.wait("ServiceEnabled", text, None);
    }
    let attempt = pass
        .check(BOOT)
        .and_then(|check| check.attempt)
        .unwrap_or(1);
    pass.set_check(
        BOOT,
        CheckResult::Running,
        "the test server is asked for",
        Some(attempt),
    );
    let zone = host.zone().filter(|zone| {
        host.fleet.as_ref().is_ok_and(|fleet| {
            let mut zones = fleet.aggregates_of(&identity.host);
            zones.any(|one| one.availability_zone.as_deref() == Some(*zone))
        })
    });
    let failure = pass.act(Action::CreateTest {
        name: server_name(host),
        host: identity.host.clone(),
        zone: zone.map(ToOwned::to_owned),
    });
    match failure {
        Some(failure) if failure.count >= 3 => {
            let text = failure.text.clone();
            fail(pass, BOOT, text);
        }
        Some(failure) => keep(pass, BOOT, &failure.text.clone()),
        None => keep(pass, BOOT, "the test server is asked for"),
    }
}

/// Goes on with the test server that is there.
fn follow(pass: &mut Pass, identity: &Identity, server: &TestServer) {
    let settled = server.status == "ACTIVE" && server.task.is_none();
    if server.status == "ERROR" {
        let running = WITH_SERVER
            .iter()
            .find(|name| result(pass, name) == CheckResult::Running);
        let name = running.copied().unwrap_or(BOOT);
        let text = server
            .fault
            .clone()
            .unwrap_or_else(|| "Nova says ERROR without a reason".to_owned());
        return fail(pass, name, text);
    }
    if result(pass, BOOT) != CheckResult::Passed {
        let attempt = pass.check(BOOT).and_then(|check| check.attempt).or(Some(1));
        if !settled {
            let text = format!("the test server is in {}", server.status);
            return keep(pass, BOOT, &text);
        }
        if server.host.as_deref() != Some(identity.host.as_str()) {
            let there = server.host.as_deref().unwrap_or("no host");
            return fail(
                pass,
                BOOT,
                format!("the test server was started on {there}"),
            );
        }
        if !server.spoke {
            return keep(
                pass,
                BOOT,
                "the console of the test server does not show its name yet",
            );
        }
        pass.set_check(BOOT, CheckResult::Passed, "a server has booted", attempt);
        let (result, text) = if pass.host.settings.test_volume {
            (CheckResult::Passed, "it has booted from a volume")
        } else {
            (CheckResult::Skipped, "no type of volume is configured")
        };
        pass.set_check(STORAGE, result, text, None);
    }
    migrate(pass, identity, server, settled);
}

fn migrate(pass: &mut Pass, identity: &Identity, server: &TestServer, settled: bool) {
    let at_home = server.host.as_deref() == Some(identity.host.as_str());
    if result(pass, OUT) != CheckResult::Passed {
        let Some(peer) = pass.host.peers.first() else {
            let text = "no other host of the zone takes workload";
            pass.set_check(OUT, CheckResult::Skipped, text, None);
            pass.set_check(IN, CheckResult::Skipped, text, None);
            pass.wake_in(0);
            return pass.wait("Check", "the test server is being removed", None);
        };
        if settled && !at_home {
            let there = server.host.as_deref().unwrap_or("another host");
            pass.set_check(
                OUT,
                CheckResult::Passed,
                format!("live-migrated to {there}"),
                None,
            );
        } else {
            return step(pass, OUT, server, settled, peer);
        }
    }
    if settled && at_home {
        pass.set_check(IN, CheckResult::Passed, "live-migrated back", None);
        pass.wake_in(0);
        return pass.wait("Check", "the test server is being removed", None);
    }
    step(pass, IN, server, settled, &identity.host);
}

/// One migration of the test server.
fn step(pass: &mut Pass, name: &str, server: &TestServer, settled: bool, to: &str) {
    let began = result(pass, name) == CheckResult::Running;
    let last = server.migration.as_ref();
    let last = last.filter(|last| last.to.as_deref().is_none_or(|there| there == to));
    match last {
        Some(last) if began && last.ended && !last.succeeded => {
            fail(
                pass,
                name,
                format!("the live migration to {to} ended as {}", last.status),
            );
        }
        Some(last) if !last.ended || !settled => {
            keep(
                pass,
                name,
                &format!("the live migration to {to} is {}", last.status),
            );
        }
        _ if !settled => keep(
            pass,
            name,
            &format!("the test server is in {}", server.status),
        ),
        _ => {
            let failure = pass.act(Action::MigrateTest {
                id: server.id.clone(),
                to: to.to_owned(),
            });
            match failure {
                Some(failure) if failure.count >= 3 => {
                    let text = failure.text.clone();
                    fail(pass, name, text);
                }
                Some(failure) => keep(pass, name, &failure.text.clone()),
                None => keep(
                    pass,
                    name,
                    &format!("the live migration to {to} is asked for"),
                ),
            }
        }
    }
}
