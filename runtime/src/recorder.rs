//! Kubernetes Events that never hold up the one who reports them: a bounded queue and one writer.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder as Publisher, Reporter};
use tokio::sync::mpsc;

use crate::chain;

/// More than this waiting means that the API server is away; the log has them all.
const QUEUE: usize = 256;
const DEADLINE: Duration = Duration::from_secs(10);
/// So many Events are remembered, so that one that comes again is counted instead of written anew.
/// kube remembers all of the last minutes: in a storm, megabytes.
const REMEMBERED: u32 = 128;
/// The limits of the API.
const NOTE_MAX: usize = 1024;

/// How serious it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It went as it should.
    Normal,
    /// Somebody should look.
    Warning,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// How serious it is.
    pub severity: Severity,
    /// Why, as one CamelCase word.
    pub reason: &'static str,
    /// What was done, as one CamelCase word.
    pub action: &'static str,
    /// The story for people.
    pub text: String,
}

/// Where Events are handed in.
#[derive(Debug, Clone)]
pub struct Recorder(mpsc::Sender<(ObjectReference, Note)>);

impl Recorder {
    /// A recorder, and the future that writes what it gets. `controller` and `instance` are who
    /// reports.
    pub fn new(
        client: Client,
        controller: &str,
        instance: &str,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, mut queue) = mpsc::channel::<(ObjectReference, Note)>(QUEUE);
        let reporter = Reporter {
            controller: controller.to_owned(),
            instance: Some(instance.to_owned()),
        };
        let write = async move {
            let mut publisher = Publisher::new(client.clone(), reporter.clone());
            let mut remembered = 0;
            while let Some((about, note)) = queue.recv().await {
                remembered += 1;
                if remembered > REMEMBERED {
                    publisher = Publisher::new(client.clone(), reporter.clone());
                    remembered = 1;
                }
                let reason = note.reason;
                let event = Event {
                    type_: match note.severity {
                        Severity::Normal => EventType::Normal,
                        Severity::Warning => EventType::Warning,
                    },
                    reason: note.reason.to_owned(),
                    note: Some(shorten(note.text)),
                    action: note.action.to_owned(),
                    secondary: None,
                };
                let published = publisher.publish(&event, &about);
                match tokio::time::timeout(DEADLINE, published).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::warn!(reason, error = chain(&error), "failed to write an Event");
                    }
                    Err(_) => tracing::warn!(reason, "no answer to an Event in time"),
                }
            }
        };
        (Self(sender), write)
    }

    /// Reports something about an object. It is logged in any case.
    pub fn report(&self, about: &ObjectReference, note: Note) {
        let object = about.name.as_deref().unwrap_or_default();
        match note.severity {
            Severity::Normal => tracing::info!(object, reason = note.reason, "{}", note.text),
            Severity::Warning => tracing::warn!(object, reason = note.reason, "{}", note.text),
        }
        if self.0.try_send((about.clone(), note)).is_err() {
            tracing::debug!(object, "too many Events wait; one is left out");
        }
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > NOTE_MAX {
        let mut end = NOTE_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}
