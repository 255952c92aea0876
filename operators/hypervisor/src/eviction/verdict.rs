//! Whether one instance can be moved, and how: by its state in Nova, its devices, its group and the
//! room that other hosts have.

use std::collections::BTreeMap;

use cobalt_api::eviction::{
    EvictionInstance, Method, Preflight, PreflightFinding, PreflightReason as Why, Verdict,
};
use cobalt_openstack::compute::{MigrationKind, Server, ServerStatus};

use super::seen::{Group, Reads};

/// The key in a server's metadata that says who goes first: a number, higher ones first.
pub const PRIORITY_KEY: &str = "cobalt:eviction_priority";
/// The flavor's extra spec for the same, which the agent uses for its own order, too.
pub const PRIORITY_SPEC: &str = "cobalt:ha_priority";

/// What can be done with an instance now.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// For the row.
    pub preflight: Preflight,
    /// How it can be moved; `None`: it cannot.
    pub method: Option<Method>,
    /// Something is under way that ends by itself: it is looked at again soon.
    pub passes: bool,
    /// Its guest may run although Nova says ERROR: the agent knows.
    pub may_run: bool,
    /// A cold migration by nobody's wish is left to be confirmed.
    pub confirm: bool,
}

/// The priority of a server: higher ones go first.
#[must_use]
pub fn priority(server: &Server) -> i32 {
    let own = server.metadata.get(PRIORITY_KEY);
    let flavor = server.flavor.extra_specs.get(PRIORITY_SPEC);
    own.into_iter()
        .chain(flavor)
        .find_map(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Judges one server. `row` is what was said of it so far.
#[must_use]
pub fn judge(server: &Server, row: &EvictionInstance, reads: &Reads) -> Judged {
    let mut findings = Findings::default();
    let mut passes = false;
    let mut may_run = false;
    let mut confirm = false;
    let mut method =
        match &server.status {
            ServerStatus::Active | ServerStatus::Paused => Some(Method::Live),
            ServerStatus::Shutoff => Some(Method::Cold),
            ServerStatus::Shelved => Some(Method::Offload),
            ServerStatus::Error => {
                may_run = true;
                let fault = server.fault.as_ref().map(|fault| fault.message.as_str());
                findings.add(Why::InError, format!(
                "Nova says ERROR{}: reset its state if its guest runs, or rebuild or delete it",
                fault.map(|fault| format!(" ({fault})")).unwrap_or_default(),
            ));
                None
            }
            ServerStatus::Build => {
                passes = true;
                findings.add(Why::TaskInProgress, "it is being built".to_owned());
                None
            }
            ServerStatus::VerifyResize => {
                // A cold migration has no owner who looks at it before it is confirmed; a resize has.
                let last = reads
                    .migrations
                    .as_ref()
                    .and_then(|read| read.value.iter().find(|one| one.server == server.id));
                confirm = last.is_some_and(|last| last.kind == MigrationKind::Cold);
                passes = true;
                findings.add(
                    Why::TaskInProgress,
                    "a resize waits for its owner: confirm or revert it".to_owned(),
                );
                None
            }
            ServerStatus::Migrating | ServerStatus::Resize => {
                passes = true;
                findings.add(
                    Why::TaskInProgress,
                    "somebody else moves or resizes it".to_owned(),
                );
                None
            }
            ServerStatus::Suspended => {
                findings.add(
                    Why::UnsupportedState,
                    "Nova does not move a suspended server: resume, stop or shelve it".to_owned(),
                );
                None
            }
            ServerStatus::Rescue => {
                findings.add(
                    Why::UnsupportedState,
                    "Nova does not move a server in rescue: unrescue it".to_owned(),
                );
                None
            }
            other => {
                findings.add(
                    Why::UnsupportedState,
                    format!("Nova does not move a server that is {}", other.as_str()),
                );
                None
            }
        };
    if let Some(task) = server.task_state.as_deref().filter(|task| !task.is_empty()) {
        passes = true;
        method = None;
        if !findings.has(Why::TaskInProgress) {
            findings.add(Why::TaskInProgress, format!("Nova is busy with it: {task}"));
        }
    }
    if server.locked {
        // Administrators may; it is told, because its owner asked to be left alone.
        let why = server
            .locked_reason
            .as_deref()
            .map(|why| format!(" ({why})"));
        findings.note(
            Why::Locked,
            format!(
                "its owner locked it{}; it is moved all the same",
                why.unwrap_or_default()
            ),
        );
    }
    let specs = &server.flavor.extra_specs;
    if method.is_some()
        && method != Some(Method::Offload)
        && let Some(profile) = specs.get("accel:device_profile")
    {
        let text =
            format!("it has an accelerator ({profile}), which Nova does not move: shelve it");
        findings.add(Why::PassthroughDevice, text);
        method = None;
    }
    if method == Some(Method::Live) && is_encrypted(specs) {
        findings.add(
            Why::UnsupportedState,
            "its memory is encrypted (hw:mem_encryption): stop it, and it is moved while it is off"
                .to_owned(),
        );
        method = None;
    }
    if method == Some(Method::Live)
        && let Some(said) = not_running(&server.id, reads)
    {
        // Nova would take a guest that is not there for one that has moved, and the server would end
        // in ERROR on the target.
        findings.add(
            Why::GuestNotRunning,
            format!(
                "Nova calls it {}, and {said}: it is moved while it is off as soon as Nova has \
                 noticed; else stop or start it",
                server.status
            ),
        );
        method = None;
    }
    // Only Nova's configuration says whether the device can go along: it is tried.
    let mut unknown = false;
    if method == Some(Method::Live)
        && let Some(device) = passthrough(specs)
    {
        if row.method == Some(Method::Live) && row.attempt.is_some() {
            let why = row.error.as_deref().map(|why| format!(" ({why})"));
            findings.add(
                Why::PassthroughDevice,
                format!(
                    "it has a device of its host ({device}), and Nova did not move it with that{}: \
                     stop it, and it is moved while it is off",
                    why.unwrap_or_default()
                ),
            );
            method = None;
        } else {
            unknown = true;
            findings.note(
                Why::PassthroughDevice,
                format!(
                    "it has a device of its host ({device}): Nova moves it if the device can \
                     migrate (live_migratable), else it has to be stopped"
                ),
            );
        }
    }
    if method == Some(Method::Live)
        && let Some(kinds) = reads.devices.get(&server.id)
    {
        let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
        findings.note(
            Why::PassthroughDevice,
            format!(
                "a port of it is a device of its host ({}): Nova takes it off while the server \
                 moves, which has no network there meanwhile",
                kinds.join(", ")
            ),
        );
    }
    if method.is_some() && method != Some(Method::Offload) {
        if let Some(text) = local_disk(server) {
            findings.note(Why::LocalStorage, text);
        }
        if let Some(text) = kept_apart(&server.id, reads) {
            findings.note(Why::AffinityGroup, text);
        }
        if let Some(text) = kept_together(&server.id, reads) {
            findings.add(Why::AffinityGroup, text);
            method = None;
        }
    }
    let mut hosts = None;
    if method.is_some() && method != Some(Method::Offload) {
        match reads.targets.as_ref().map(|read| &read.value) {
            Some(Ok(targets)) => {
                // Who failed to take it while it ran may take it while it is off.
                let avoided = if method == row.method || row.method.is_none() {
                    row.avoid.as_slice()
                } else {
                    &[]
                };
                // A server that came later is not in it; Nova will say.
                let room = targets.get(&server.id);
                hosts = room.and_then(|room| i32::try_from(room.len()).ok());
                let survey = reads.surveys.get(&server.id);
                if room.is_some_and(Vec::is_empty) {
                    let why = survey.map(|survey| format!(": {}", survey.why_none()));
                    let reason = match survey {
                        Some(survey) if survey.apart > 0 && survey.full == 0 => Why::AffinityGroup,
                        _ => Why::NoCapacity,
                    };
                    findings.add(
                        reason,
                        format!(
                            "no other host takes it with {} processors and {} MiB{}",
                            server.flavor.vcpus,
                            server.flavor.ram,
                            why.unwrap_or_default()
                        ),
                    );
                    method = None;
                } else if let Some(survey) = survey.filter(|survey| survey.of_other_zones) {
                    unknown = true;
                    findings.note(
                        Why::NoValidHost,
                        format!(
                            "no host of its zone takes it, and Nova moves it to another zone only \
                             if it is not bound to its own: {}",
                            survey.why_none()
                        ),
                    );
                } else if room.is_some_and(|room| room.iter().all(|host| avoided.contains(host))) {
                    unknown = true;
                    findings.note(
                        Why::NoValidHost,
                        format!(
                            "every host with room has failed to take it, and is tried again: {}",
                            row.avoid.join(", ")
                        ),
                    );
                }
            }
            Some(Err(error)) => {
                unknown = true;
                findings.note(
                    Why::CheckFailed,
                    format!("Placement was not asked: {error}"),
                );
            }
            None => unknown = true,
        }
    }
    let verdict = match method {
        Some(_) if unknown => Verdict::Unknown,
        Some(Method::Live) => Verdict::Movable,
        Some(Method::Cold | Method::Offload) => Verdict::MovableCold,
        None if passes => Verdict::Unknown,
        None => Verdict::Blocked,
    };
    Judged {
        preflight: Preflight {
            verdict,
            hosts,
            reasons: findings.0,
        },
        method,
        passes,
        may_run,
        confirm,
    }
}

/// What libvirt says of a guest that it does not run, if its agent can be asked.
fn not_running(id: &str, reads: &Reads) -> Option<String> {
    match reads.libvirt.as_ref()?.value.domain(id)? {
        Some(domain) if domain.runs => None,
        Some(domain) => Some(format!(
            "libvirt says that its guest does not run ({})",
            domain.state
        )),
        None => Some("libvirt does not have it".to_owned()),
    }
}

#[derive(Default)]
struct Findings(Vec<PreflightFinding>);

impl Findings {
    /// What stands in the way comes first.
    fn add(&mut self, reason: Why, message: String) {
        self.0.insert(0, finding(reason, message));
    }

    fn note(&mut self, reason: Why, message: String) {
        self.0.push(finding(reason, message));
    }

    fn has(&self, reason: Why) -> bool {
        self.0.iter().any(|one| one.reason == reason.as_str())
    }
}

fn finding(reason: Why, message: String) -> PreflightFinding {
    PreflightFinding {
        reason: reason.as_str().to_owned(),
        message: Some(crate::pass::cut(message, 1024)),
    }
}

fn is_encrypted(specs: &BTreeMap<String, String>) -> bool {
    let wish = specs.get("hw:mem_encryption");
    wish.is_some_and(|wish| ["true", "yes", "on", "1"].contains(&wish.to_lowercase().as_str()))
}

/// A device of the host that may not be able to go along while the guest runs.
fn passthrough(specs: &BTreeMap<String, String>) -> Option<&str> {
    let pci = specs.get("pci_passthrough:alias");
    if let Some(alias) = pci.filter(|alias| !alias.is_empty()) {
        return Some(alias);
    }
    let classes = ["resources:VGPU", "resources:PGPU", "resources:FPGA"];
    classes.into_iter().find(|class| {
        specs
            .iter()
            .any(|(key, amount)| key.starts_with(class) && amount != "0")
    })
}

/// What has to be copied if no storage is shared.
fn local_disk(server: &Server) -> Option<String> {
    let flavor = &server.flavor;
    let gib = flavor.disk + flavor.ephemeral;
    (server.volumes.is_empty() && gib > 0)
        .then(|| format!("its disks ({gib} GiB) are copied unless the hosts share their storage"))
}

/// A group that keeps its servers on one host. Nova's filter takes a server's own host for one of the
/// group's, so that it moves none of them, not even the last.
fn kept_together(id: &str, reads: &Reads) -> Option<String> {
    let group = groups_of(id, reads).find(|group| group.together)?;
    Some(format!(
        "the server group \"{}\" keeps its servers on the host where they are, and Nova moves none of \
         them: delete the group, and they can leave",
        group.name
    ))
}

/// Servers that it must not share a host with: where they are, the scheduler knows.
fn kept_apart(id: &str, reads: &Reads) -> Option<String> {
    let group = groups_of(id, reads).find(|group| !group.together)?;
    let others = group.members.len().saturating_sub(1);
    (others > 0).then(|| {
        format!(
            "the server group \"{}\" keeps it apart from {others} other servers",
            group.name
        )
    })
}

fn groups_of<'a>(id: &'a str, reads: &'a Reads) -> impl Iterator<Item = &'a Group> {
    reads
        .groups
        .iter()
        .filter(move |group| group.members.contains(id))
}
