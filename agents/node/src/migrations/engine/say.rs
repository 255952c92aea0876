//! Who writes what is to be said: one writer for each migration and end.

use std::collections::BTreeMap;

use cobalt_api::migration::Role;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Engine, Slot};
use crate::migrations::arrival::Incoming;
use crate::migrations::book::Act;
use crate::migrations::machine::{Aftermath, Outgoing, Place, verdict};
use crate::migrations::object::{self, Known};
use crate::migrations::write::{Close, Said};

impl Engine {
    pub(super) fn act(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Out(instance, outgoing) => self.say_out(instance, &outgoing),
                Act::In(instance, incoming) => self.say_in(instance, &incoming),
            }
        }
        self.count();
    }

    pub(super) fn count(&self) {
        let (leaving, coming) = self.book.count();
        self.metrics.running(Role::Source, leaving);
        self.metrics.running(Role::Destination, coming);
    }

    fn say_out(&mut self, instance: Uuid, outgoing: &Outgoing) {
        if let Some(result) = outgoing.result() {
            let stats = outgoing.sample().map(|sample| &sample.stats);
            self.metrics.ended(Role::Source, result, stats);
            tracing::info!(%instance, %result, "a migration away has ended");
        }
        if self.synced {
            self.write_out(instance, outgoing);
        } else if outgoing.result().is_some() {
            self.waiting.push((instance, outgoing.clone()));
        }
    }

    fn write_out(&mut self, instance: Uuid, outgoing: &Outgoing) {
        let said = |outgoing: &Outgoing| Said {
            content: outgoing.status(&instance.to_string(), &self.ctx.node, &self.ctx.node_label),
            last: outgoing.result().is_some(),
        };
        if let Some(slot) = self.slots.get(&instance) {
            slot.said.send_replace(said(outgoing));
        } else {
            let mut outgoing = outgoing.clone();
            let name = self.name(instance, &mut outgoing);
            self.book.begun(instance, outgoing.started);
            let (sender, slot) = watch::channel(said(&outgoing));
            let stale = self.stale(instance, &name);
            tracing::info!(%instance, migration = name, "a migration away");
            self.ours.insert(name.clone());
            self.ours
                .extend(stale.iter().map(|close| close.name.clone()));
            let done = CancellationToken::new();
            let before = self.ended.insert(instance, done.clone());
            let write = self
                .writer
                .clone()
                .source(name.clone(), instance, stale, slot);
            self.tasks.spawn(async move {
                let _done = done.drop_guard();
                if let Some(before) = before {
                    before.cancelled().await;
                }
                write.await;
            });
            self.slots.insert(instance, Slot { name, said: sender });
        }
        if outgoing.result().is_some() {
            self.slots.remove(&instance);
        }
        self.ended.retain(|_, done| !done.is_cancelled());
    }

    /// The name of a migration's object: that of before a restart, or a new one.
    fn name(&self, instance: Uuid, outgoing: &mut Outgoing) -> String {
        let others: BTreeMap<String, Known> = self
            .known
            .iter()
            .filter(|(name, known)| known.instance == instance && !self.ours.contains(*name))
            .map(|(name, known)| (name.clone(), known.clone()))
            .collect();
        if let Some(name) = object::same_migration(&others, instance, outgoing.started) {
            if let Some(started) = others.get(name).and_then(|known| known.started) {
                outgoing.started = started;
            }
            return name.clone();
        }
        outgoing.started = object::later_than_known(&self.known, instance, outgoing.started);
        object::name(instance, outgoing.started)
    }

    /// Unfinished objects of an instance that begins another migration.
    fn stale(&self, instance: Uuid, name: &str) -> Vec<Close> {
        let open = |(other, known): &(&String, &Known)| {
            known.instance == instance
                && known.finished.is_none()
                && *other != name
                && !self.ours.contains(*other)
        };
        let close = |(name, known): (&String, &Known)| {
            let (result, error) = verdict(&Aftermath {
                place: Place::Here,
                completed: None,
                destination: known.destination_result,
            });
            Close {
                name: name.clone(),
                result,
                error,
            }
        };
        self.known.iter().filter(open).map(close).collect()
    }

    fn say_in(&mut self, instance: Uuid, incoming: &Incoming) {
        let last = incoming.result().is_some();
        if let Some(result) = incoming.result() {
            self.metrics.ended(Role::Destination, result, None);
            tracing::info!(%instance, %result, "a migration to this host has ended");
        }
        let said = Said {
            content: incoming.entry(&self.ctx.node),
            last,
        };
        if let Some(slot) = self.arrivals.get(&instance) {
            slot.send_replace(said);
        } else {
            let (sender, slot) = watch::channel(said);
            let writer = self.writer.clone();
            let (began, from_start) = (incoming.began, incoming.from_start);
            self.tasks
                .spawn(writer.destination(instance, began, from_start, slot));
            self.arrivals.insert(instance, sender);
        }
        if last {
            self.arrivals.remove(&instance);
        }
    }

    /// The API server was reached: what was seen before is written now, in its last state.
    pub(super) fn flush(&mut self) {
        if std::mem::replace(&mut self.synced, true) {
            return;
        }
        for (instance, outgoing) in std::mem::take(&mut self.waiting) {
            self.write_out(instance, &outgoing);
        }
        let running: Vec<(Uuid, Outgoing)> = self
            .book
            .outgoing()
            .map(|(instance, outgoing)| (instance, outgoing.clone()))
            .collect();
        for (instance, outgoing) in running {
            self.write_out(instance, &outgoing);
        }
    }
}
