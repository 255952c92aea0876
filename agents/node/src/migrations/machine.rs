//! How one migration goes, as its source sees it. Pure: time is an argument.
//!
//! ```text
//! begun --sample--> ... --post-copy--> ... --left, no job, stopped--> finished
//! ```
//!
//! Only the source decides how the migration ended. Success is what libvirt says, never what is
//! left when nothing else is known.

use std::time::{Duration, Instant};

use cobalt_api::migration::{
    JobOperation, JobType, MigrationEnd, MigrationResult, MigrationStatus, Role,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::sample::Sample;

/// How long the source waits for the final numbers after the instance has left.
const NUMBERS: Duration = Duration::from_millis(500);
/// How long the source waits for libvirt's word after the job is no more: an answer to a question
/// may overtake the event that says how it ended.
const WORD: Duration = Duration::from_millis(900);

/// The time, by both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For intervals: it never jumps.
    pub instant: Instant,
    /// For people.
    pub wall: Timestamp,
}

/// What is to be done with the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// It says something new.
    Write,
    /// It says the last there is to say.
    Finish,
}

/// Where the instance is when its job is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It runs on this host.
    Here,
    /// It is off on this host because it has left.
    Left,
    /// It is off on this host; the reason.
    Off(&'static str),
    /// This host does not know it any more.
    Gone,
}

/// What is left when a job is no more.
#[derive(Debug, Clone, PartialEq)]
pub struct Aftermath {
    /// Where the instance is.
    pub place: Place,
    /// What libvirt has kept of the last job.
    pub completed: Option<Sample>,
    /// What the other end says.
    pub destination: Option<MigrationResult>,
}

/// How it ended, and what went wrong.
#[must_use]
pub fn verdict(aftermath: &Aftermath) -> (MigrationResult, Option<String>) {
    use MigrationResult::{Cancelled, Failed, Succeeded, Unknown};
    let said = aftermath
        .completed
        .as_ref()
        .filter(|job| job.operation == JobOperation::MigrationOut);
    let why = said.and_then(|job| job.error.clone());
    let ended = said.and_then(|job| job.job_type);
    match (ended, aftermath.place) {
        (Some(JobType::Cancelled), _) => {
            (Cancelled, why.or_else(|| Some("it was aborted".to_owned())))
        }
        (Some(JobType::Failed), _) => (Failed, why.or_else(|| unsaid("it failed"))),
        (_, Place::Left) => (Succeeded, None),
        (_, Place::Here) => (Failed, why.or_else(|| unsaid("it ended"))),
        (Some(JobType::Completed), Place::Gone) => (Succeeded, None),
        (_, Place::Gone | Place::Off(_)) if aftermath.destination == Some(Succeeded) => {
            (Succeeded, None)
        }
        (_, Place::Off(why)) => (
            Failed,
            Some(format!(
                "the instance {why} on the source during the migration"
            )),
        ),
        (_, Place::Gone) => (
            Unknown,
            Some(
                "nobody saw how it ended; the source does not know the instance any more"
                    .to_owned(),
            ),
        ),
    }
}

fn unsaid(what: &str) -> Option<String> {
    Some(format!(
        "{what} without success, or was aborted: libvirt does not say; the instance still runs on the source"
    ))
}

/// What the source learns.
#[derive(Debug, Clone)]
pub enum Input {
    /// The job as it is now.
    Sample(Sample),
    /// The job has ended, says libvirt by itself.
    Completed(Sample),
    /// The instance has left.
    Left,
    /// The instance was stopped otherwise.
    Stopped(&'static str),
    /// Post-copy has begun.
    PostCopy,
    /// Post-copy was interrupted.
    PostCopyFailed,
    /// There is no job any more.
    NoJob(Aftermath),
    /// The other end has said its name.
    Destination(String),
}

/// A migration away from this host.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// When it began.
    pub started: Timestamp,
    destination: Option<String>,
    sample: Option<Sample>,
    read: Option<Timestamp>,
    /// Said by libvirt; the final numbers may come a moment later.
    left: Option<Instant>,
    /// Since when there is no job any more, without a word from libvirt, and what was left then.
    jobless: Option<(Instant, Aftermath)>,
    trouble: Option<String>,
    /// Something was said of it, under this beginning: it stays.
    told: bool,
    written: Option<Instant>,
    finished: Option<(MigrationResult, Timestamp)>,
}

impl Outgoing {
    /// A migration that is seen for the first time. The job says how long it has been running, so
    /// a second look finds the same beginning.
    #[must_use]
    pub fn begin(sample: Option<Sample>, now: Now) -> Self {
        let started = sample
            .as_ref()
            .map_or(now.wall, |sample| began(sample, now));
        Self {
            started,
            destination: None,
            read: sample.as_ref().map(|_| now.wall),
            // With a job to show it is said at once.
            told: sample.is_some(),
            sample,
            left: None,
            jobless: None,
            trouble: None,
            written: Some(now.instant),
            finished: None,
        }
    }

    /// Takes in what was learnt. `every` is how often progress is written (W64).
    pub fn step(&mut self, input: Input, now: Now, every: Duration) -> Step {
        if self.finished.is_some() {
            return Step::Nothing;
        }
        match input {
            Input::Sample(sample) => {
                self.take(sample, now);
                self.paced(now, every)
            }
            Input::Completed(sample) => {
                let failed = sample.job_type == Some(JobType::Failed);
                let error = sample.error.clone();
                self.take(sample, now);
                if failed {
                    self.finish(MigrationResult::Failed, error, now)
                } else {
                    self.finish(MigrationResult::Succeeded, None, now)
                }
            }
            Input::Left => {
                self.left = Some(now.instant);
                Step::Nothing
            }
            Input::Stopped(_) if self.left.is_some() => {
                self.finish(MigrationResult::Succeeded, None, now)
            }
            Input::Stopped(why) => {
                let error = format!("the instance {why} on the source during the migration");
                self.finish(MigrationResult::Failed, Some(error), now)
            }
            Input::PostCopy => self.phase(None, now),
            Input::PostCopyFailed => {
                let trouble = "post-copy was interrupted: the instance stands still until the \
                               migration is recovered";
                self.phase(Some(trouble.to_owned()), now)
            }
            Input::NoJob(_) if self.awaits_numbers(now) => Step::Nothing,
            Input::NoJob(aftermath) if self.awaits_word(&aftermath, now) => Step::Nothing,
            Input::NoJob(aftermath) => self.conclude(aftermath, now),
            Input::Destination(name) => {
                // It is in the next write; it is not worth one of its own.
                self.destination = Some(name);
                Step::Nothing
            }
        }
    }

    /// It has ended, and libvirt says nothing by itself.
    fn conclude(&mut self, mut aftermath: Aftermath, now: Now) -> Step {
        // What the job said while it was being ended counts, if libvirt keeps nothing.
        let ending =
            |job: &&Sample| matches!(job.job_type, Some(JobType::Failed | JobType::Cancelled));
        if aftermath.completed.is_none() {
            aftermath.completed = self.sample.as_ref().filter(ending).cloned();
        }
        let (result, error) = if self.left.is_some() {
            (MigrationResult::Succeeded, None)
        } else {
            verdict(&aftermath)
        };
        // The last job that libvirt kept is this one only if it went the same way.
        let fits = |job: &Sample| job.operation == JobOperation::MigrationOut;
        if let Some(job) = aftermath.completed.filter(fits) {
            self.take(job, now);
        }
        self.finish(result, error, now)
    }

    /// Whether libvirt may still say by itself how it ended.
    fn awaits_word(&mut self, aftermath: &Aftermath, now: Now) -> bool {
        if self.left.is_some() || aftermath.completed.is_some() {
            return false;
        }
        let first = || (now.instant, aftermath.clone());
        let (since, _) = self.jobless.get_or_insert_with(first);
        now.instant.saturating_duration_since(*since) < WORD
    }

    /// Whether a job that runs now is another one, because this one's job was no more, or because
    /// the instance had left before that job began. This one has ended then.
    pub fn overtaken(&mut self, job: &Sample, now: Now) -> Option<Step> {
        if let Some((_, aftermath)) = self.jobless.take() {
            return Some(self.conclude(aftermath, now));
        }
        let elapsed = job.stats.elapsed_millis;
        let elapsed = Duration::from_millis(u64::try_from(elapsed?).ok()?);
        let since_left = now.instant.saturating_duration_since(self.left?);
        (elapsed < since_left).then(|| self.finish(MigrationResult::Succeeded, None, now))
    }

    fn take(&mut self, sample: Sample, now: Now) {
        self.jobless = None;
        if self.sample.is_none() && !self.told {
            // Only now is known when it began.
            self.started = began(&sample, now);
        }
        self.sample = Some(sample);
        self.read = Some(now.wall);
    }

    fn paced(&mut self, now: Now, every: Duration) -> Step {
        let due = self
            .written
            .is_none_or(|written| now.instant.saturating_duration_since(written) >= every);
        if due {
            self.told = true;
            self.written = Some(now.instant);
            Step::Write
        } else {
            Step::Nothing
        }
    }

    fn phase(&mut self, trouble: Option<String>, now: Now) -> Step {
        self.trouble = trouble;
        self.told = true;
        self.written = Some(now.instant);
        Step::Write
    }

    fn finish(&mut self, result: MigrationResult, error: Option<String>, now: Now) -> Step {
        self.trouble = error;
        // A clock that was set back does not make it end before it began.
        self.finished = Some((result, now.wall.max(self.started)));
        Step::Finish
    }

    /// The instance has left a moment ago; libvirt sends the final numbers right after.
    fn awaits_numbers(&self, now: Now) -> bool {
        self.left
            .is_some_and(|left| now.instant.saturating_duration_since(left) < NUMBERS)
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn result(&self) -> Option<MigrationResult> {
        self.finished.map(|(result, _)| result)
    }

    /// The last numbers.
    #[must_use]
    pub fn sample(&self) -> Option<&Sample> {
        self.sample.as_ref()
    }

    /// What the object is to say.
    #[must_use]
    pub fn status(&self, instance: &str, node: &str, label: &str) -> MigrationStatus {
        let result = self.result();
        let running = self.sample.as_ref().and_then(|sample| sample.job_type);
        let job_type = match result {
            None => running.unwrap_or(JobType::Unbounded),
            Some(MigrationResult::Succeeded) => JobType::Success,
            Some(MigrationResult::Failed) => JobType::Failed,
            Some(MigrationResult::Cancelled) => JobType::Cancelled,
            Some(MigrationResult::Unknown) => JobType::Completed,
        };
        let mut status = MigrationStatus {
            origin: Some(label.to_owned()),
            destination: self.destination.clone(),
            type_: Some(job_type.as_str().to_owned()),
            operation: Some(JobOperation::MigrationOut.as_str().to_owned()),
            started: Some(Time(self.started)),
            err_msg: self.trouble.clone(),
            instance: Some(instance.to_owned()),
            result,
            finished: self.finished.map(|(_, at)| Time(at)),
            ends: vec![MigrationEnd {
                role: Role::Source,
                node: node.to_owned(),
                updated: self.read.map(Time),
                result,
                error: self.trouble.clone().map(shorten),
                stats: self.sample.as_ref().map(|sample| sample.stats.clone()),
            }],
            ..MigrationStatus::default()
        };
        if let Some(sample) = &self.sample {
            sample.fill(&mut status);
        }
        status
    }
}

/// When a job began, in whole milliseconds as names have them.
fn began(sample: &Sample, now: Now) -> Timestamp {
    let elapsed = SignedDuration::from_millis(sample.stats.elapsed_millis.unwrap_or(0));
    let started = now.wall.checked_sub(elapsed).unwrap_or(now.wall);
    Timestamp::from_millisecond(started.as_millisecond()).unwrap_or(started)
}

/// The schema admits 2048 characters.
pub(super) fn shorten(text: String) -> String {
    match text.char_indices().nth(2048) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned(),
        None => text,
    }
}
