//! All migrations of this host and what follows from each event and each look at libvirt. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cobalt_api::migration::JobOperation;
use cobalt_libvirt::Domain;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::arrival::{Arrival, Incoming};
use super::machine::{Aftermath, Input, Now, Outgoing, Place, Step};
use super::sample::Sample;
use super::signal::Signal;

/// Signs of a migration that has just ended are not those of a new one.
const ECHO: Duration = Duration::from_secs(10);
const SAME_JOB: SignedDuration = SignedDuration::from_secs(5);

/// What a look at a job has found.
#[derive(Debug, Clone)]
pub enum Reading {
    /// A job runs.
    Job(Sample),
    /// None does.
    NoJob(Aftermath),
}

/// Something is to be said.
#[derive(Debug, Clone)]
pub enum Act {
    /// About a migration away from this host.
    Out(Uuid, Box<Outgoing>),
    /// About a migration to this host.
    In(Uuid, Box<Incoming>),
}

/// A migration with the handle by which libvirt knows its instance.
#[derive(Debug, Clone)]
struct Of<T> {
    domain: Domain,
    migration: T,
}

/// All migrations of this host.
#[derive(Debug, Clone)]
pub struct Book {
    every: Duration,
    out: BTreeMap<Uuid, Of<Outgoing>>,
    incoming: BTreeMap<Uuid, Of<Incoming>>,
    /// A job sends their memory; which one is not known yet.
    suspects: BTreeMap<Uuid, Domain>,
    /// What has just ended: when it began, and when that was seen.
    ended: BTreeMap<Uuid, (Timestamp, Instant)>,
}

impl Book {
    /// An empty one. `every` is how often progress is written.
    #[must_use]
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            out: BTreeMap::new(),
            incoming: BTreeMap::new(),
            suspects: BTreeMap::new(),
            ended: BTreeMap::new(),
        }
    }

    /// Whether nothing runs, so that nothing needs to be looked at.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.out.is_empty() && self.incoming.is_empty() && self.suspects.is_empty()
    }

    /// How many leave and how many come.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        (self.out.len(), self.incoming.len())
    }

    /// Whether an instance leaves.
    #[must_use]
    pub fn leaves(&self, instance: Uuid) -> bool {
        self.out.contains_key(&instance)
    }

    /// The migrations away, as they are.
    pub fn outgoing(&self) -> impl Iterator<Item = (Uuid, &Outgoing)> {
        self.out.iter().map(|(uuid, of)| (*uuid, &of.migration))
    }

    /// Instances whose job is to be looked at: those that leave, and those that may.
    #[must_use]
    pub fn to_sample(&self) -> Vec<Domain> {
        let leaving = self.out.values().map(|of| &of.domain);
        leaving.chain(self.suspects.values()).cloned().collect()
    }

    /// Instances that may leave; their job tells.
    #[must_use]
    pub fn to_ask(&self) -> Vec<Domain> {
        self.suspects.values().cloned().collect()
    }

    /// Instances that come.
    #[must_use]
    pub fn to_look_at(&self) -> Vec<Domain> {
        self.incoming.values().map(|of| of.domain.clone()).collect()
    }

    /// Takes in an event.
    pub fn signal(&mut self, domain: &Domain, signal: Signal, now: Now) -> Vec<Act> {
        let uuid = domain.uuid;
        match signal {
            Signal::Copying => {
                if !self.out.contains_key(&uuid) {
                    self.suspects.insert(uuid, domain.clone());
                }
                Vec::new()
            }
            Signal::PostCopy => self.step_out(uuid, Input::PostCopy, now),
            Signal::PostCopyFailed => self.step_out(uuid, Input::PostCopyFailed, now),
            Signal::Left => {
                self.begin(domain, None, now);
                self.step_out(uuid, Input::Left, now)
            }
            Signal::Completed(sample) => {
                self.begin(domain, Some((*sample).clone()), now);
                self.step_out(uuid, Input::Completed(*sample), now)
            }
            Signal::Stopped(why) => {
                self.suspects.remove(&uuid);
                let mut acts = self.step_out(uuid, Input::Stopped(why), now);
                acts.extend(self.step_in(uuid, Arrival::Stopped(why), now));
                acts
            }
            Signal::Arriving => self.arriving(domain, true, now),
            Signal::RunsHere => self.step_in(uuid, Arrival::RunsHere, now),
            // Only of an instance that was coming; on a source it is the end of a failed migration,
            // of which the job tells (W63).
            Signal::Arrived => self.step_in(uuid, Arrival::Arrived, now),
        }
    }

    /// Takes in a look at a job.
    pub fn read(&mut self, domain: &Domain, reading: Reading, now: Now) -> Vec<Act> {
        let uuid = domain.uuid;
        self.suspects.remove(&uuid);
        match reading {
            Reading::Job(sample) if sample.operation == JobOperation::MigrationOut => {
                let mut acts = self.overtake(uuid, &sample, now);
                if self.out.contains_key(&uuid) {
                    return self.step_out(uuid, Input::Sample(sample), now);
                }
                if self.begin(domain, Some(sample), now) {
                    let begun = self.out.get(&uuid).map(|of| of.migration.clone());
                    acts.extend(begun.map(|begun| Act::Out(uuid, Box::new(begun))));
                }
                acts
            }
            Reading::Job(_) => {
                // Another job runs, so ours has ended.
                let aftermath = Aftermath {
                    place: Place::Here,
                    completed: None,
                    destination: None,
                };
                self.step_out(uuid, Input::NoJob(aftermath), now)
            }
            Reading::NoJob(aftermath) => self.step_out(uuid, Input::NoJob(aftermath), now),
        }
    }

    /// The job of an instance cannot be looked at, so it is none that leaves.
    pub fn dismiss(&mut self, uuid: Uuid) {
        self.suspects.remove(&uuid);
    }

    /// An instance comes, or was found coming.
    pub fn arriving(&mut self, domain: &Domain, from_start: bool, now: Now) -> Vec<Act> {
        let uuid = domain.uuid;
        if !from_start && self.incoming.contains_key(&uuid) {
            return Vec::new();
        }
        // Its last arrival has ended unseen, or it could not come again.
        let mut acts = self.step_in(uuid, Arrival::Stopped("was stopped"), now);
        let migration = Incoming::begin(from_start, now);
        acts.push(Act::In(uuid, Box::new(migration.clone())));
        let domain = domain.clone();
        self.incoming.insert(uuid, Of { domain, migration });
        acts
    }

    /// Takes in a look at an instance that comes.
    pub fn look(&mut self, uuid: Uuid, look: Arrival, now: Now) -> Vec<Act> {
        self.step_in(uuid, look, now)
    }

    /// The beginning that the object of a migration away has.
    pub fn begun(&mut self, uuid: Uuid, started: Timestamp) {
        if let Some(of) = self.out.get_mut(&uuid) {
            of.migration.started = started;
        }
    }

    /// Takes in the name of the other end.
    pub fn destination(&mut self, uuid: Uuid, node: String, now: Now) {
        drop(self.step_out(uuid, Input::Destination(node), now));
    }

    /// A new one, unless it is running or has just ended.
    fn begin(&mut self, domain: &Domain, sample: Option<Sample>, now: Now) -> bool {
        let uuid = domain.uuid;
        if self.out.contains_key(&uuid) {
            return false;
        }
        self.ended
            .retain(|_, (_, seen)| now.instant.saturating_duration_since(*seen) < ECHO);
        let timed = sample.is_some();
        let migration = Outgoing::begin(sample, now);
        let echo = self.ended.get(&uuid).is_some_and(|(started, _)| {
            !timed || migration.started.duration_since(*started).abs() <= SAME_JOB
        });
        if echo {
            return false;
        }
        self.suspects.remove(&uuid);
        let domain = domain.clone();
        self.out.insert(uuid, Of { domain, migration });
        true
    }

    /// Ends a migration whose job was no more, because another job runs.
    fn overtake(&mut self, uuid: Uuid, job: &Sample, now: Now) -> Vec<Act> {
        let of = self.out.get_mut(&uuid);
        match of.and_then(|of| of.migration.overtaken(job, now)) {
            Some(step) => self.done(uuid, step, now),
            None => Vec::new(),
        }
    }

    fn step_out(&mut self, uuid: Uuid, input: Input, now: Now) -> Vec<Act> {
        let Some(of) = self.out.get_mut(&uuid) else {
            return Vec::new();
        };
        let step = of.migration.step(input, now, self.every);
        self.done(uuid, step, now)
    }

    fn done(&mut self, uuid: Uuid, step: Step, now: Now) -> Vec<Act> {
        let Some(of) = self.out.get(&uuid) else {
            return Vec::new();
        };
        let act = || vec![Act::Out(uuid, Box::new(of.migration.clone()))];
        match step {
            Step::Nothing => Vec::new(),
            Step::Write => act(),
            Step::Finish => {
                let act = act();
                self.ended.insert(uuid, (of.migration.started, now.instant));
                self.out.remove(&uuid);
                act
            }
        }
    }

    fn step_in(&mut self, uuid: Uuid, arrival: Arrival, now: Now) -> Vec<Act> {
        let Some(of) = self.incoming.get_mut(&uuid) else {
            return Vec::new();
        };
        let step = of.migration.step(arrival, now);
        let act = || vec![Act::In(uuid, Box::new(of.migration.clone()))];
        match step {
            Step::Nothing => Vec::new(),
            Step::Write => act(),
            Step::Finish => {
                let act = act();
                self.incoming.remove(&uuid);
                act
            }
        }
    }
}
