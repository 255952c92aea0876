//! Kubernetes Events that never hold up the one who reports them: a bounded queue and one writer.
//!
//! Events that say the same are one Event with a count. The same means: object, severity, reason,
//! action and text. The recorder of kube leaves out the text, so that of two causes with one reason
//! only the first was ever seen.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

use crate::chain;

/// More than this waiting means that the API server is away; the log has them all.
const QUEUE: usize = 256;
const DEADLINE: Duration = Duration::from_secs(10);
/// How many Events are remembered, to count one that comes again instead of writing it anew.
const REMEMBERED: usize = 128;
/// An Event that did not come again for so long is written anew.
const FORGOTTEN: SignedDuration = SignedDuration::from_mins(6);
/// The limit of the API, in bytes.
const NOTE_MAX: usize = 1024;
/// Leaves room for the time in the name of an Event, which may have 253 bytes.
const NAME_MAX: usize = 220;

/// How serious it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It went as it should.
    Normal,
    /// Somebody should look.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
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
    /// A recorder, and the future that writes what it gets, until there are no more recorders.
    /// `controller` and `instance` are who reports.
    pub fn new(
        client: Client,
        controller: &str,
        instance: &str,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, mut queue) = mpsc::channel::<(ObjectReference, Note)>(QUEUE);
        let mut writer = Writer {
            client,
            controller: controller.to_owned(),
            instance: instance.to_owned(),
            memory: Memory::default(),
        };
        let write = async move {
            while let Some((about, mut note)) = queue.recv().await {
                note.text = shorten(note.text, NOTE_MAX);
                let reason = note.reason;
                match tokio::time::timeout(DEADLINE, writer.write(about, note)).await {
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

struct Writer {
    client: Client,
    controller: String,
    instance: String,
    memory: Memory,
}

impl Writer {
    async fn write(&mut self, about: ObjectReference, note: Note) -> kube::Result<()> {
        let now = Timestamp::now();
        // An Event about an object of the cluster is in this namespace.
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        if let Some((name, count)) = self.memory.find(&about, &note, now) {
            let series = EventSeries {
                count,
                last_observed_time: MicroTime(now),
            };
            let patch = Patch::Merge(json!({ "series": series }));
            match api.patch(&name, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    self.memory.put(about, note, name, count, now);
                    return Ok(());
                }
                // The API server forgets Events after a while.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.event(&about, &note, now);
        api.create(&PostParams::default(), &event).await?;
        let name = event.metadata.name.unwrap_or_default();
        self.memory.put(about, note, name, 1, now);
        Ok(())
    }

    fn event(&self, about: &ObjectReference, note: &Note, now: Timestamp) -> Event {
        let object = about
            .name
            .clone()
            .unwrap_or_else(|| self.controller.clone());
        let object = shorten(object, NAME_MAX);
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{object}.{:x}", now.as_nanosecond())),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            type_: Some(note.severity.as_str().to_owned()),
            reason: Some(note.reason.to_owned()),
            action: Some(note.action.to_owned()),
            note: Some(note.text.clone()),
            regarding: Some(about.clone()),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            event_time: Some(MicroTime(now)),
            ..Event::default()
        }
    }
}

/// The Events that were written last, the one that is longest ago first.
#[derive(Debug, Default)]
struct Memory(VecDeque<Written>);

#[derive(Debug)]
struct Written {
    about: ObjectReference,
    note: Note,
    name: String,
    count: i32,
    last: Timestamp,
}

impl Memory {
    /// The name of the Event that says the same, and how often it came with this time.
    fn find(
        &mut self,
        about: &ObjectReference,
        note: &Note,
        now: Timestamp,
    ) -> Option<(String, i32)> {
        self.0
            .retain(|one| now.duration_since(one.last) < FORGOTTEN);
        let same = self
            .0
            .iter()
            .find(|one| one.about == *about && one.note == *note)?;
        Some((same.name.clone(), same.count.saturating_add(1)))
    }

    fn put(
        &mut self,
        about: ObjectReference,
        note: Note,
        name: String,
        count: i32,
        last: Timestamp,
    ) {
        self.0.retain(|one| one.about != about || one.note != note);
        if self.0.len() >= REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Written {
            about,
            note,
            name,
            count,
            last,
        });
    }
}

fn shorten(mut text: String, most: usize) -> String {
    if text.len() > most {
        let mut end = most;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        }
    }

    fn note(text: &str) -> Note {
        Note {
            severity: Severity::Warning,
            reason: "Failed",
            action: "Try",
            text: text.to_owned(),
        }
    }

    #[test]
    fn events_are_merged_only_if_they_say_the_same() {
        let now = Timestamp::UNIX_EPOCH;
        let mut memory = Memory::default();
        memory.put(about("hv1"), note("no disk"), "first".to_owned(), 1, now);
        let same = memory.find(&about("hv1"), &note("no disk"), now);
        assert_eq!(same, Some(("first".to_owned(), 2)));
        let others = [
            (about("hv2"), note("no disk")),
            (about("hv1"), note("no network")),
            (
                about("hv1"),
                Note {
                    severity: Severity::Normal,
                    ..note("no disk")
                },
            ),
            (
                about("hv1"),
                Note {
                    reason: "Refused",
                    ..note("no disk")
                },
            ),
            (
                about("hv1"),
                Note {
                    action: "Ask",
                    ..note("no disk")
                },
            ),
        ];
        for (about, note) in others {
            assert_eq!(memory.find(&about, &note, now), None, "{about:?} {note:?}");
        }
    }

    #[test]
    fn an_event_that_was_long_ago_is_written_anew() {
        let begin = Timestamp::UNIX_EPOCH;
        let mut memory = Memory::default();
        memory.put(about("hv1"), note("no disk"), "first".to_owned(), 1, begin);
        let later = begin + FORGOTTEN;
        assert_eq!(memory.find(&about("hv1"), &note("no disk"), later), None);
    }

    #[test]
    fn a_storm_of_events_is_forgotten_from_its_beginning() {
        let now = Timestamp::UNIX_EPOCH;
        let mut memory = Memory::default();
        for number in 0..10 * REMEMBERED {
            let text = number.to_string();
            memory.put(about("hv1"), note(&text), text.clone(), 1, now);
        }
        assert_eq!(memory.0.len(), REMEMBERED);
        let last = (10 * REMEMBERED - 1).to_string();
        let found = memory.find(&about("hv1"), &note(&last), now);
        assert_eq!(found, Some((last, 2)));
        assert_eq!(memory.find(&about("hv1"), &note("0"), now), None);
    }
}
