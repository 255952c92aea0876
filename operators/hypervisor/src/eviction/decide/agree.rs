//! Whether Nova, Placement and libvirt agree that nothing is left on the host. As long as they do
//! not, the eviction does not succeed: it says who says what, and ends with a failure if they never
//! agree.

use std::collections::{BTreeMap, BTreeSet};

use cobalt_api::eviction::{InstanceCounts, InstanceState as State};
use cobalt_openstack::compute::{MigrationKind, MigrationStatus};
use jiff::{SignedDuration, Timestamp};

use super::end::{failure, summary};
use super::{BETWEEN_EMPTY, Turn};
use crate::eviction::seen::{Action, Policy};
use crate::eviction::witness::{Claim, Claims, Domain, Place, Report};

/// Nova is asked again this often while the witnesses do not agree.
pub(super) const AGAIN: SignedDuration = SignedDuration::from_secs(5);
/// Placement, after it has not answered.
const PLACEMENT_AGAIN: SignedDuration = SignedDuration::from_secs(2);
/// The agent of the host. Asking it costs Nova nothing.
const LIBVIRT_AGAIN: SignedDuration = SignedDuration::from_secs(1);
/// The agent tells this late at most that a domain is gone.
const LIBVIRT_LAG: SignedDuration = SignedDuration::from_secs(15);
/// How long it is believed that a guest runs, before its live migration is asked for.
const GUESTS_FOR: SignedDuration = SignedDuration::from_secs(10);
/// How long an agent that cannot be asked is left alone.
pub(super) const SILENT_FOR: SignedDuration = SignedDuration::from_secs(60);
/// How many are named in a message.
const MOST_NAMED: usize = 5;

/// Why one waits here.
const DOUBTS: [&str; 7] = [
    "CellDown",
    "HostDisabled",
    "Libvirt",
    "MigrationUnderWay",
    "Placement",
    "UnconfirmedResize",
    "WitnessesDisagree",
];

/// What keeps an eviction from its end.
struct Doubt {
    reason: &'static str,
    text: String,
    /// After how long it is given up; `None`: never.
    patience: Option<SignedDuration>,
}

/// What follows from those who hold something of the host.
#[derive(Default)]
struct Weighed {
    doubt: Option<Doubt>,
    /// What is not in the way and is told all the same.
    note: Option<String>,
    /// Servers whose cold migration is to be confirmed.
    confirm: BTreeSet<String>,
}

impl<'a> Turn<'a> {
    /// Whether nothing is left of the host, or of the instances that were asked for: then what was
    /// not asked, and what is worth to be told.
    pub(super) fn agree(&mut self, host: &str, whole: bool) -> Option<Vec<String>> {
        let mut notes = Vec::new();
        let listed = self.seen.reads.servers.as_ref()?.at;
        if whole && !self.nova_and_placement_agree(host, listed, &mut notes) {
            return None;
        }
        let report = self.libvirt_since(listed)?;
        let domains = match report {
            Report::Silent(why) => {
                notes.push(format!("libvirt was not asked: {why}"));
                return Some(notes);
            }
            Report::Domains(domains) => domains,
        };
        let left = self.left_in_libvirt(domains, whole);
        if left.is_empty() {
            return Some(notes);
        }
        let who = if whole { "Nova and Placement" } else { "Nova" };
        let text = format!(
            "{who} have nothing left on the host, and libvirt has {} there",
            named(&left)
        );
        self.libvirt_again();
        let disagrees = self.before.as_ref().is_some_and(|before| {
            let late = before.since.0 + LIBVIRT_LAG <= self.now;
            before.reason == "WitnessesDisagree" || (before.reason == "Libvirt" && late)
        });
        if !disagrees {
            self.wait("Libvirt", text);
            return None;
        }
        self.doubt(Doubt {
            reason: "WitnessesDisagree",
            text,
            patience: Some(self.seen.policy.host_patience),
        });
        self.list_at(host, listed + AGAIN);
        None
    }

    /// Domains that should not be there. Of a host that is not emptied as a whole, those that run
    /// here although they have moved.
    fn left_in_libvirt(&self, domains: &BTreeMap<String, Domain>, whole: bool) -> BTreeSet<String> {
        let moved = |id: &String| {
            let mut rows = self.status.instances.iter();
            rows.any(|row| row.id == *id && row.state == State::Moved)
        };
        domains
            .iter()
            .filter(|(id, domain)| whole || (domain.runs && moved(id)))
            .map(|(id, domain)| format!("{id} ({})", domain.state))
            .collect()
    }

    /// Whether the two that know of servers agree that none is left.
    fn nova_and_placement_agree(
        &mut self,
        host: &str,
        listed: Timestamp,
        notes: &mut Vec<String>,
    ) -> bool {
        let began = self.status.started_at.as_ref().map(|began| began.0);
        let empties = &self.seen.reads.empties;
        // What was seen for another Eviction of the host before this one began does not count.
        let own: Vec<Timestamp> = empties
            .iter()
            .copied()
            .filter(|at| Some(*at) >= began)
            .collect();
        let (Some(first), Some(last)) = (own.first(), empties.last()) else {
            self.list_at(host, listed + BETWEEN_EMPTY);
            return false;
        };
        if *last != listed {
            self.list_at(host, listed + BETWEEN_EMPTY);
            return false;
        }
        let own = own.len();
        let Some(closed) = self.closed_since(host, *first) else {
            self.list_at(host, listed + AGAIN);
            return false;
        };
        let provider = match &self.seen.source.identity {
            Ok(Some(identity)) => identity.hypervisor_id.is_some(),
            _ => false,
        };
        if !provider && own >= 2 {
            notes.push("Placement was not asked: it has no provider of the host".to_owned());
            return true;
        }
        let holders = self.seen.reads.holders.as_ref();
        let holders = holders.filter(|read| read.at > listed && read.at >= closed);
        match holders {
            None if provider => self.ask_placement(listed),
            // Whoever is on his way to the host is in Placement before he is in Nova's list: where
            // nobody holds anything, that is as good as a second list.
            Some(holders) if holders.value.is_empty() => return true,
            // Nova may be about to give it back.
            _ if own < 2 => self.list_at(host, listed + BETWEEN_EMPTY),
            Some(holders) => return self.weigh_holders(host, listed, holders.at, notes),
            None => {}
        }
        false
    }

    /// Whether those who hold something of the host are nothing to wait for. That is believed only if
    /// the host was listed as empty after they were looked up: a resize that is reverted in between is
    /// in neither answer.
    fn weigh_holders(
        &mut self,
        host: &str,
        listed: Timestamp,
        held: Timestamp,
        notes: &mut Vec<String>,
    ) -> bool {
        let Some(report) = self.libvirt_since(listed) else {
            return false;
        };
        let reads = &self.seen.reads;
        let holders = || reads.holders.iter().flat_map(|read| &read.value);
        let before = reads.claims.as_ref().filter(|read| {
            read.at < listed && holders().all(|one| read.value.by.contains_key(one))
        });
        let before = before.map(|read| weigh(host, &read.value, report, &self.seen.policy));
        if let Some(weighed) = before.filter(|weighed| weighed.doubt.is_none()) {
            notes.extend(weighed.note);
            return true;
        }
        let Some(claims) = reads.claims.as_ref().filter(|read| read.at >= held) else {
            let consumers = holders().cloned().collect();
            let host = host.to_owned();
            self.actions.insert(Action::ReadClaims { host, consumers });
            return false;
        };
        let weighed = weigh(host, &claims.value, report, &self.seen.policy);
        for server in weighed.confirm {
            self.actions.insert(Action::Confirm { server });
        }
        match weighed.doubt {
            None => self.list_at(host, listed + BETWEEN_EMPTY),
            Some(doubt) => {
                self.doubt(doubt);
                self.list_at(host, listed + AGAIN);
            }
        }
        false
    }

    /// When the scheduler was last seen to be kept away from the host, if that was after `then`. A
    /// host that takes new instances is not empty for long, whatever the lists say; whoever enabled
    /// its service did so after the eviction began.
    fn closed_since(&mut self, host: &str, then: Timestamp) -> Option<Timestamp> {
        let read = self.seen.reads.enabled.as_ref();
        let read = read.filter(|read| read.at >= then);
        let due = read.map(|read| read.at + BETWEEN_EMPTY);
        match (read, due) {
            (Some(read), _) if !read.value => return Some(read.at),
            (Some(_), Some(due)) if due > self.now => self.wake_at(due),
            _ => {
                let host = host.to_owned();
                self.actions.insert(Action::ReadService { host });
            }
        }
        if read.is_some() {
            let text = format!(
                "the host takes new instances again: set spec.maintenance of the Hypervisor \
                 \"{}\", or disable its nova-compute service",
                self.seen.eviction.spec.hypervisor
            );
            self.doubt(Doubt {
                reason: "HostDisabled",
                text,
                patience: Some(self.seen.policy.host_patience),
            });
        }
        None
    }

    /// What was waited for goes on being waited for while it is looked at again.
    pub(super) fn go_on_waiting(&mut self) {
        let over = self.status.outcome.is_some() || self.status.waiting_for.is_some();
        let before = self.before.as_ref().filter(|_| !over);
        if let Some(before) = before.filter(|before| DOUBTS.contains(&before.reason.as_str())) {
            self.status.waiting_for = Some(before.clone());
        }
    }

    /// What the agent of the host says since then; it is asked if it has not said anything.
    fn libvirt_since(&mut self, then: Timestamp) -> Option<&'a Report> {
        let seen = self.seen;
        let read = seen.reads.libvirt.as_ref().filter(|read| read.at > then);
        if read.is_none() {
            self.actions.insert(Action::ReadDomains);
        }
        read.map(|read| &read.value)
    }

    /// Asks the agent of the host again in time.
    pub(super) fn libvirt_again(&mut self) {
        self.libvirt_within(LIBVIRT_AGAIN);
    }

    /// Asks the agent of the host whenever what it said is older than this.
    pub(super) fn libvirt_within(&mut self, every: SignedDuration) {
        let last = self.seen.reads.libvirt.as_ref().map(|read| read.at);
        match last.map(|last| last + every) {
            Some(due) if due > self.now => self.wake_at(due),
            _ => {
                self.actions.insert(Action::ReadDomains);
                self.wake_in(every);
            }
        }
    }

    /// Whether a guest may have crashed since the agent of the host was asked.
    pub(super) fn libvirt_is_old(&self) -> bool {
        let read = self.seen.reads.libvirt.as_ref();
        read.is_none_or(|read| {
            let good = match read.value {
                Report::Domains(_) => GUESTS_FOR,
                Report::Silent(_) => SILENT_FOR,
            };
            self.now.duration_since(read.at) > good
        })
    }

    fn ask_placement(&mut self, listed: Timestamp) {
        let trouble = self.seen.reads.placement_trouble.as_ref();
        let Some(trouble) = trouble.filter(|read| read.at > listed) else {
            return self.read_holders();
        };
        self.wait("Placement", trouble.value.clone());
        let due = trouble.at + PLACEMENT_AGAIN;
        if due <= self.now {
            self.read_holders();
            self.wake_in(PLACEMENT_AGAIN);
        } else {
            self.wake_at(due);
        }
    }

    /// Lists the servers of the host again at that time.
    fn list_at(&mut self, host: &str, at: Timestamp) {
        if at <= self.now {
            let host = host.to_owned();
            self.actions.insert(Action::ReadServers { host });
        } else {
            self.wake_at(at);
        }
    }

    /// Waits, or ends without success.
    fn doubt(&mut self, doubt: Doubt) {
        let expired = doubt
            .patience
            .is_some_and(|patience| self.waited(doubt.reason, patience));
        if !expired {
            return self.wait(doubt.reason, doubt.text);
        }
        let counts = InstanceCounts::of(&self.status.instances);
        let text = format!("{}; {}", doubt.text, summary(counts));
        self.end(failure(counts), &text);
    }
}

/// What follows from who holds something of the host, if Nova lists no server there.
fn weigh(host: &str, claims: &Claims, libvirt: &Report, policy: &Policy) -> Weighed {
    let all: BTreeSet<String> = claims.by.keys().cloned().collect();
    let down = |claim: &Claim| *claim == Claim::Server(Place::CellDown);
    if claims.cell_down || claims.by.values().any(down) {
        let doubt = Doubt {
            reason: "CellDown",
            text: format!(
                "the database of the host's Nova cell does not answer: Nova lists no servers, and \
                 Placement has {} on the host",
                named(&all)
            ),
            patience: None,
        };
        return Weighed {
            doubt: Some(doubt),
            ..Weighed::default()
        };
    }
    let mut unconfirmed = BTreeSet::new();
    let mut confirm = BTreeSet::new();
    let mut underway = BTreeSet::new();
    let mut contradicts = BTreeSet::new();
    let mut leaked = BTreeSet::new();
    for (consumer, claim) in &claims.by {
        match claim {
            Claim::Migration {
                server,
                kind,
                status: MigrationStatus::Finished,
            } => {
                // A cold migration has no owner who looks at it before it is confirmed; a resize
                // has.
                if *kind == MigrationKind::Cold {
                    confirm.insert(server.clone());
                }
                unconfirmed.insert(server.clone());
            }
            Claim::Migration { server, status, .. } => {
                underway.insert(format!("{server} ({status})"));
            }
            Claim::Server(place) => {
                let rests = match place {
                    Place::On { host: on, busy, .. } => on != host && !busy,
                    Place::Offloaded | Place::Gone => true,
                    Place::Nowhere(_) | Place::CellDown => false,
                };
                // Two against one: Nova says that it is elsewhere, and libvirt does not have it.
                if rests && libvirt.domain(consumer) == Some(None) {
                    leaked.insert(consumer.clone());
                } else {
                    contradicts.insert(format!("{consumer} ({})", told(place)));
                }
            }
            Claim::Nobody => {
                leaked.insert(consumer.clone());
            }
        }
    }
    let doubt = |reason, text, patience| {
        Some(Doubt {
            reason,
            text,
            patience: Some(patience),
        })
    };
    let doubt = if !unconfirmed.is_empty() {
        let text = format!(
            "{} has been resized or migrated off the host, and a revert brings it back: confirm or \
             revert it",
            named(&unconfirmed)
        );
        doubt("UnconfirmedResize", text, policy.instance_deadline)
    } else if !underway.is_empty() {
        let text = format!(
            "somebody else moves {} from the host or to it",
            named(&underway)
        );
        doubt("MigrationUnderWay", text, policy.instance_deadline)
    } else if !contradicts.is_empty() {
        let more = match libvirt.silence() {
            Some(why) => format!("; libvirt was not asked: {why}"),
            None => String::new(),
        };
        let text = format!(
            "Nova lists no server on the host, and Placement has {} there{more}",
            named(&contradicts)
        );
        doubt("WitnessesDisagree", text, policy.host_patience)
    } else {
        None
    };
    let note = (!leaked.is_empty()).then(|| {
        format!(
            "Placement has allocations on the host that nobody uses: {}",
            named(&leaked)
        )
    });
    Weighed {
        doubt,
        note,
        confirm,
    }
}

fn told(place: &Place) -> String {
    match place {
        Place::On { host, status, .. } => format!("{status} on {host}, says Nova"),
        Place::Nowhere(status) => format!("{status} on no host, says Nova"),
        Place::Offloaded => "shelved and offloaded, says Nova".to_owned(),
        Place::CellDown => "UNKNOWN, says Nova".to_owned(),
        Place::Gone => "deleted, says Nova".to_owned(),
    }
}

fn named(all: &BTreeSet<String>) -> String {
    let first: Vec<&str> = all.iter().take(MOST_NAMED).map(String::as_str).collect();
    let more = all.len().saturating_sub(first.len());
    if more == 0 {
        first.join(", ")
    } else {
        format!("{} and {more} more", first.join(", "))
    }
}
