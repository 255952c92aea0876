//! Follows drains to their end: by watches, on a terminal or as lines.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cobalt_api::eviction::{Eviction, Outcome};
use futures::StreamExt;
use futures::stream::select_all;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::begin::Begun;
use super::cluster::{Cluster, Sight};
use super::screen::{Screen, answers, can_ask};
use super::undo;
use super::view::{Drain, changes, ending, frame};
use crate::output::Format;
use crate::text::put;

/// The exit code of a drain that goes on without us.
pub const LEFT_RUNNING: u8 = 130;
/// How often the times on the terminal are brought up to date.
const TICK: Duration = Duration::from_secs(1);
const QUESTION: &str = "The drain goes on. Type c and Enter to cancel it, or l and Enter to leave it \
                        running (so does Ctrl-C): ";

/// The exit code of an outcome.
pub fn code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Succeeded => 0,
        Outcome::Failed => 1,
        Outcome::PartiallyFailed => 3,
        Outcome::TimedOut => 4,
        Outcome::Cancelled => 5,
    }
}

/// The exit code of several: that of the worst.
pub fn worst(outcomes: impl Iterator<Item = Outcome>) -> u8 {
    let badness = |outcome: &Outcome| match outcome {
        Outcome::Succeeded => 0,
        Outcome::Cancelled => 1,
        Outcome::PartiallyFailed => 2,
        Outcome::TimedOut => 3,
        Outcome::Failed => 4,
    };
    outcomes.max_by_key(badness).map_or(0, code)
}

/// What the person has been asked.
enum Dialogue {
    Nothing,
    Asked(mpsc::Receiver<String>),
    /// It is being cancelled; there is nothing more to ask.
    Cancelling,
}

/// Drains that are being followed.
struct Follower<'a> {
    cluster: &'a Cluster,
    drains: Vec<Drain>,
    /// Which Eviction each one is, and whether it is in sight.
    watches: Vec<(String, Sight)>,
    screen: Option<Screen>,
    dialogue: Dialogue,
    format: Format,
}

/// A listener for Ctrl-C, which then does not end the program.
pub fn interrupts() -> Result<Signal> {
    signal(SignalKind::interrupt()).context("failed to listen for Ctrl-C")
}

/// Follows drains until all have ended, or the person does not want to.
pub async fn follow(
    cluster: &Cluster,
    begun: Vec<Begun>,
    mut interrupts: Signal,
    format: Format,
) -> Result<ExitCode> {
    let watches = begun.iter().enumerate().map(|(index, one)| {
        let changes = watcher::watch_object(cluster.evictions.clone(), &one.node);
        let changes = changes.default_backoff();
        changes.map(move |change| (index, change)).boxed()
    });
    let mut watches = select_all(watches);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut follower = Follower::new(cluster, begun, format);
    while follower.drains.iter().any(|drain| drain.outcome.is_none()) {
        tokio::select! {
            change = watches.next() => match change {
                Some((index, Ok(seen))) => follower.see(index, seen),
                Some((index, Err(error))) => follower.lose(index, error)?,
                None => bail!("the watch has ended; `cobalt drain --wait` follows the drain again"),
            },
            _ = tick.tick(), if follower.screen.is_some() => {}
            Some(()) = interrupts.recv() => {
                if let Some(code) = follower.interrupt()? {
                    return Ok(code);
                }
            }
            answer = next(&mut follower.dialogue) => {
                if let Some(code) = follower.answer(answer).await? {
                    return Ok(code);
                }
            }
        }
        follower.draw();
    }
    follower.end()
}

/// The next answer; never, if nobody was asked. None: there will be no answer.
async fn next(dialogue: &mut Dialogue) -> Option<String> {
    match dialogue {
        Dialogue::Asked(answers) => answers.recv().await,
        Dialogue::Nothing | Dialogue::Cancelling => std::future::pending().await,
    }
}

impl<'a> Follower<'a> {
    fn new(cluster: &'a Cluster, begun: Vec<Begun>, format: Format) -> Self {
        let (watches, drains) = begun
            .into_iter()
            .map(|one| {
                let drain = Drain {
                    node: one.node,
                    ..Drain::default()
                };
                ((one.uid, Sight::default()), drain)
            })
            .unzip();
        Self {
            cluster,
            drains,
            watches,
            screen: Screen::open().filter(|_| format == Format::Text),
            dialogue: Dialogue::Nothing,
            format,
        }
    }

    /// Takes in what an Eviction has become.
    fn see(&mut self, index: usize, seen: Option<Eviction>) {
        let watch = self.watches.get_mut(index);
        let (Some(drain), Some((uid, sight))) = (self.drains.get_mut(index), watch) else {
            return;
        };
        sight.sees();
        if drain.outcome.is_some() {
            return;
        }
        let mut after = drain.clone();
        after.seen = true;
        after.trouble = None;
        match seen {
            Some(eviction) if eviction.uid().as_ref() == Some(&*uid) => {
                after.outcome = eviction.status.as_ref().and_then(|status| status.outcome);
                after.status = eviction.status;
            }
            Some(_) => {
                after.outcome = Some(Outcome::Cancelled);
                after.note = Some("another Eviction has taken the place of this one".to_owned());
            }
            None => {
                after.outcome = Some(Outcome::Cancelled);
                after.note = Some("its Eviction was deleted".to_owned());
            }
        }
        if self.screen.is_none() {
            print_changes(drain, &after, self.format);
        }
        *drain = after;
    }

    /// Notes that the API server does not answer. That is not the end of the drain.
    fn lose(&mut self, index: usize, error: watcher::Error) -> Result<()> {
        let watch = self.watches.get_mut(index);
        let (Some(drain), Some((_, sight))) = (self.drains.get_mut(index), watch) else {
            return Ok(());
        };
        if sight.is_lost(&error, Instant::now()) {
            return Err(error).context("failed to watch the Eviction; the drain goes on");
        }
        let first = drain.trouble.is_none();
        drain.trouble = Some("the API server does not answer; trying again".to_owned());
        if first && self.screen.is_none() {
            eprintln!(
                "{}: the API server does not answer; trying again",
                drain.node
            );
        }
        Ok(())
    }

    /// Ctrl-C. Returns the exit code if nothing is to be asked.
    fn interrupt(&mut self) -> Result<Option<ExitCode>> {
        let Some(screen) = &mut self.screen else {
            return Ok(Some(self.leave()?));
        };
        match self.dialogue {
            Dialogue::Nothing if can_ask() => {
                screen.below(QUESTION);
                self.dialogue = Dialogue::Asked(answers());
                Ok(None)
            }
            _ => {
                screen.below("\n");
                Ok(Some(self.leave()?))
            }
        }
    }

    /// What the person wants. Returns the exit code if that is not to look on.
    async fn answer(&mut self, answer: Option<String>) -> Result<Option<ExitCode>> {
        match answer.as_deref().map(str::trim) {
            Some("c" | "C") => {
                self.dialogue = Dialogue::Cancelling;
                for drain in &self.drains {
                    if drain.outcome.is_none() {
                        undo::begin(self.cluster, &drain.node)
                            .await
                            .context("failed to cancel; the drain goes on")?;
                        put(&format!("{}: being cancelled\n", drain.node));
                    }
                }
                Ok(None)
            }
            Some("l" | "L") | None => Ok(Some(self.leave()?)),
            Some(_) => {
                put(QUESTION);
                Ok(None)
            }
        }
    }

    fn leave(&self) -> Result<ExitCode> {
        for drain in &self.drains {
            if drain.outcome.is_none() {
                let node = &drain.node;
                self.format.progress(&format!(
                    "{node}: left running; `cobalt drain {node} --wait` follows it, `cobalt \
                     undrain {node}` cancels it\n"
                ));
            }
        }
        self.format.document(&document(&self.drains))?;
        Ok(ExitCode::from(LEFT_RUNNING))
    }

    fn draw(&mut self) {
        let is_asked = matches!(self.dialogue, Dialogue::Asked(_));
        if let Some(screen) = self.screen.as_mut().filter(|_| !is_asked) {
            screen.draw(&frame(&self.drains, Timestamp::now(), Screen::size()));
        }
    }

    fn end(mut self) -> Result<ExitCode> {
        if let Some(screen) = &mut self.screen {
            match self.dialogue {
                Dialogue::Asked(_) => screen.below("\n"),
                Dialogue::Nothing | Dialogue::Cancelling => screen.clear(),
            }
        }
        let text = ending(&self.drains, Timestamp::now());
        self.format.print(&text, &document(&self.drains))?;
        let outcomes = self.drains.iter().filter_map(|drain| drain.outcome);
        Ok(ExitCode::from(worst(outcomes)))
    }
}

/// The drains, for programs.
fn document(drains: &[Drain]) -> Value {
    let hosts = drains.iter().map(|drain| {
        json!({
            "name": drain.node,
            "outcome": drain.outcome,
            "note": drain.note,
            "status": drain.status,
        })
    });
    json!({ "hosts": hosts.collect::<Vec<_>>() })
}

/// Prints what has changed, line by line.
pub fn print_changes(before: &Drain, after: &Drain, format: Format) {
    for line in changes(before, after) {
        format.progress(&format!("{line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_outcome_is_the_exit_code() {
        use Outcome as O;
        let cases: [(&[Outcome], u8); 7] = [
            (&[], 0),
            (&[O::Succeeded, O::Succeeded], 0),
            (&[O::Cancelled, O::Succeeded], 5),
            (&[O::PartiallyFailed, O::Cancelled], 3),
            (&[O::PartiallyFailed, O::TimedOut], 4),
            (&[O::Failed, O::TimedOut], 1),
            (O::ALL, 1),
        ];
        for (outcomes, expected) in cases {
            assert_eq!(worst(outcomes.iter().copied()), expected, "{outcomes:?}");
        }
    }

    #[test]
    fn every_outcome_has_a_code_of_its_own_that_is_not_the_one_of_bad_usage() {
        let codes: std::collections::BTreeSet<u8> = Outcome::ALL.iter().map(|o| code(*o)).collect();
        assert_eq!(codes.len(), Outcome::ALL.len());
        assert!(!codes.contains(&2) && !codes.contains(&LEFT_RUNNING));
    }
}
