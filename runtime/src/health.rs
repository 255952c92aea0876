//! Health as progress: a loop that stands still makes the process unhealthy, a constant answer does
//! not. Waiting for somebody else (libvirt, the API server) is healthy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The pulses of all loops of a process, and what it is not ready for.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    pulses: BTreeMap<&'static str, Beat>,
    missing: BTreeMap<&'static str, String>,
}

#[derive(Debug)]
struct Beat {
    last: Instant,
    longest: Duration,
}

/// One loop's sign of life.
#[derive(Debug, Clone)]
pub struct Pulse {
    health: Health,
    name: &'static str,
}

impl Pulse {
    /// The loop has come round.
    pub fn beat(&self) {
        if let Some(beat) = self.health.lock().pulses.get_mut(self.name) {
            beat.last = Instant::now();
        }
    }
}

impl Drop for Pulse {
    /// A loop that has ended is the business of its owner, not of the health.
    fn drop(&mut self) {
        self.health.lock().pulses.remove(self.name);
    }
}

impl Health {
    /// A pulse for a loop that comes round at least every `longest`.
    #[must_use]
    pub fn pulse(&self, name: &'static str, longest: Duration) -> Pulse {
        let beat = Beat {
            last: Instant::now(),
            longest,
        };
        self.lock().pulses.insert(name, beat);
        Pulse {
            health: self.clone(),
            name,
        }
    }

    /// Says what is missing, under a name; `None` when it is there.
    pub fn set_missing(&self, name: &'static str, missing: Option<String>) {
        let mut state = self.lock();
        match missing {
            Some(reason) => state.missing.insert(name, reason),
            None => state.missing.remove(name),
        };
    }

    /// The loops that stand still.
    #[must_use]
    pub fn stuck(&self) -> Vec<String> {
        let state = self.lock();
        let late = |beat: &Beat| {
            let silent = beat.last.elapsed();
            (silent > beat.longest).then_some(silent)
        };
        state
            .pulses
            .iter()
            .filter_map(|(name, beat)| {
                late(beat).map(|silent| format!("{name} stands still for {} s", silent.as_secs()))
            })
            .collect()
    }

    /// What is missing, with its reason.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let state = self.lock();
        let say = |(name, reason): (&&str, &String)| format!("{name}: {reason}");
        state.missing.iter().map(say).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stands_still_is_named_until_it_goes_on() {
        let health = Health::default();
        let fast = health.pulse("fast", Duration::from_secs(60));
        let slow = health.pulse("slow", Duration::ZERO);
        fast.beat();
        assert_eq!(health.stuck().len(), 1);
        assert!(health.stuck().iter().all(|text| text.starts_with("slow ")));
        drop(slow);
        assert!(health.stuck().is_empty());
    }

    #[test]
    fn what_is_missing_is_said_with_its_reason_and_taken_back() {
        let health = Health::default();
        health.set_missing("libvirt", Some("refused".into()));
        assert_eq!(health.missing(), ["libvirt: refused"]);
        health.set_missing("libvirt", None);
        assert!(health.missing().is_empty());
    }
}
