//! How one migration goes, as its destination sees it. Pure: time is an argument.
//!
//! ```text
//! arriving --runs here--> ... --arrived, stopped, gone--> finished
//! ```
//!
//! libvirt gives the destination no numbers before the end.

use cobalt_api::migration::{JobOperation, MigrationEnd, MigrationResult, Role};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::machine::{Now, Step, shorten};
use super::sample::Sample;

/// How often the destination is asked for the final numbers before it does without.
const ASKS: u8 = 5;

/// What the destination learns.
#[derive(Debug, Clone)]
pub enum Arrival {
    /// The instance runs here, and its memory still comes.
    RunsHere,
    /// The instance has come.
    Arrived,
    /// The instance was stopped.
    Stopped(&'static str),
    /// A look at it: whether it runs, and what libvirt has kept of the last job.
    Look {
        /// `None`: it is not there any more. `false`: it stands still.
        running: Option<bool>,
        /// The last job.
        completed: Option<Box<Sample>>,
    },
}

/// A migration to this host.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// When it was seen first.
    pub began: Timestamp,
    /// It was seen from the beginning, so an object from long before is another one's.
    pub from_start: bool,
    arrived: bool,
    post_copy: bool,
    asked: u8,
    sample: Option<Sample>,
    error: Option<String>,
    read: Timestamp,
    result: Option<MigrationResult>,
}

impl Incoming {
    /// An instance that begins to come, or was found coming.
    #[must_use]
    pub fn begin(from_start: bool, now: Now) -> Self {
        Self {
            began: now.wall,
            from_start,
            arrived: false,
            post_copy: false,
            asked: 0,
            sample: None,
            error: None,
            read: now.wall,
            result: None,
        }
    }

    /// Takes in what was learnt.
    pub fn step(&mut self, arrival: Arrival, now: Now) -> Step {
        if self.result.is_some() {
            return Step::Nothing;
        }
        self.read = now.wall;
        match arrival {
            Arrival::RunsHere => {
                self.post_copy = true;
                Step::Nothing
            }
            Arrival::Arrived => {
                self.arrived = true;
                Step::Nothing
            }
            Arrival::Stopped(why) => {
                self.error = Some(format!("the instance {why} on the destination"));
                self.finish(MigrationResult::Failed)
            }
            Arrival::Look { running: None, .. } => {
                self.error = Some("the destination does not know the instance any more".to_owned());
                self.finish(MigrationResult::Failed)
            }
            Arrival::Look {
                running: Some(running),
                completed,
            } => {
                let kept = completed.filter(|job| job.operation == JobOperation::MigrationIn);
                if let Some(sample) = kept.filter(|_| running) {
                    self.sample = Some(*sample);
                    return self.finish(MigrationResult::Succeeded);
                }
                // The event was missed, or the numbers are not kept.
                if self.arrived || (running && !self.post_copy) {
                    self.asked = self.asked.saturating_add(1);
                }
                if self.asked >= ASKS {
                    return self.finish(MigrationResult::Succeeded);
                }
                Step::Nothing
            }
        }
    }

    fn finish(&mut self, result: MigrationResult) -> Step {
        self.result = Some(result);
        Step::Finish
    }

    /// How it ended here, if it has.
    #[must_use]
    pub fn result(&self) -> Option<MigrationResult> {
        self.result
    }

    /// This end's entry.
    #[must_use]
    pub fn entry(&self, node: &str) -> MigrationEnd {
        MigrationEnd {
            role: Role::Destination,
            node: node.to_owned(),
            updated: Some(Time(self.read)),
            result: self.result,
            error: self.error.clone().map(shorten),
            stats: self.sample.as_ref().map(|sample| sample.stats.clone()),
        }
    }
}
