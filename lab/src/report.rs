//! Progress of long work: each step is announced, timed, and ends with a result.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// One line of progress.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "event")]
pub enum Event {
    /// A step began; `expect` says how long it usually takes, when that is worth knowing.
    Started {
        /// What is being done.
        step: String,
        /// Typical duration in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<u64>,
    },
    /// A step ended well.
    Done {
        /// What was done.
        step: String,
        /// How long it took.
        millis: u64,
    },
    /// Something worth a line of its own.
    Note {
        /// The text.
        text: String,
    },
}

/// Where progress goes. Cheap to clone.
#[derive(Clone)]
pub struct Report(Arc<dyn Fn(Event) + Send + Sync>);

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Report")
    }
}

impl Report {
    /// Calls `sink` for each event.
    pub fn new(sink: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// Lines on standard error, for people.
    pub fn stderr() -> Self {
        Self::new(|event| print(&event))
    }

    /// No output.
    pub fn silent() -> Self {
        Self::new(|_| {})
    }

    /// Passes an event on.
    pub fn send(&self, event: Event) {
        (self.0)(event);
    }

    /// A line of text.
    pub fn note(&self, text: impl Into<String>) {
        self.send(Event::Note { text: text.into() });
    }

    /// Starts a step; call [`Step::done`] when it ended well.
    pub fn step(&self, step: impl Into<String>) -> Step {
        self.begin(step.into(), None)
    }

    /// Starts a step that usually takes `expect`.
    pub fn long_step(&self, step: impl Into<String>, expect: Duration) -> Step {
        self.begin(step.into(), Some(expect.as_secs()))
    }

    fn begin(&self, step: String, expect: Option<u64>) -> Step {
        self.send(Event::Started {
            step: step.clone(),
            expect,
        });
        Step {
            report: self.clone(),
            step,
            begun: Instant::now(),
        }
    }
}

/// A step under way.
#[derive(Debug)]
pub struct Step {
    report: Report,
    step: String,
    begun: Instant,
}

impl Step {
    /// The step ended well.
    pub fn done(self) {
        let millis = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.report.send(Event::Done {
            step: self.step,
            millis,
        });
    }
}

/// Prints an event for people. A short step gets one line, at its end.
pub fn print(event: &Event) {
    let mut out = std::io::stderr().lock();
    let line = match event {
        Event::Started { expect: None, .. } => return,
        Event::Started {
            step,
            expect: Some(seconds),
        } => {
            format!(
                "  ... {step} (usually {})",
                human(Duration::from_secs(*seconds))
            )
        }
        Event::Done { step, millis } => {
            format!("  {:>7}  {step}", human(Duration::from_millis(*millis)))
        }
        Event::Note { text } => format!("  {text}"),
    };
    // Nobody to tell when standard error is gone.
    drop(writeln!(out, "{line}"));
}

/// `0.4 s`, `12 s`, `4 min 24 s`.
pub fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..100 => format!("{seconds} s"),
        _ => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_for_people() {
        for (millis, text) in [
            (430, "0.4 s"),
            (9_960, "10.0 s"),
            (12_000, "12 s"),
            (264_000, "4 min 24 s"),
        ] {
            assert_eq!(human(Duration::from_millis(millis)), text);
        }
    }
}
