//! How fast somebody may write: a few writes at once, then a steady rate. A single event is
//! written at once; a storm is a handful of writes, and the last state always wins.

use std::time::{Duration, Instant};

/// A bucket of writes that fills again.
#[derive(Debug, Clone)]
pub struct Pace {
    burst: u32,
    every: Duration,
    /// When the bucket is full again. In the past: it is full.
    full_at: Option<Instant>,
}

impl Pace {
    /// Up to `burst` writes at once, and one more for each `every`.
    #[must_use]
    pub fn new(burst: u32, every: Duration) -> Self {
        Self {
            burst: burst.max(1),
            every,
            full_at: None,
        }
    }

    /// How long the next write has to wait.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        let allowed = self.every.saturating_mul(self.burst - 1);
        self.full_at
            .and_then(|full| full.checked_duration_since(now))
            .map_or(Duration::ZERO, |used| used.saturating_sub(allowed))
    }

    /// A write is made.
    pub fn take(&mut self, now: Instant) {
        let from = self.full_at.filter(|full| *full > now).unwrap_or(now);
        self.full_at = Some(from + self.every);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_one_by_one() {
        let now = Instant::now();
        let mut pace = Pace::new(3, Duration::from_millis(500));
        for _ in 0..3 {
            assert_eq!(pace.wait(now), Duration::ZERO);
            pace.take(now);
        }
        assert_eq!(pace.wait(now), Duration::from_millis(500));
        let later = now + Duration::from_millis(500);
        assert_eq!(pace.wait(later), Duration::ZERO);
        pace.take(later);
        assert_eq!(pace.wait(later), Duration::from_millis(500));
        assert_eq!(pace.wait(now + Duration::from_secs(60)), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn no_second_has_more_writes_than_the_burst_and_the_rate(
            gaps in prop::collection::vec(0_u64..200, 1..400),
        ) {
            let begin = Instant::now();
            let mut now = begin;
            let mut pace = Pace::new(5, Duration::from_millis(500));
            let mut writes: Vec<Instant> = Vec::new();
            for gap in gaps {
                now += Duration::from_millis(gap);
                if pace.wait(now) == Duration::ZERO {
                    pace.take(now);
                    writes.push(now);
                }
            }
            for first in &writes {
                let within = writes.iter().filter(|at| **at >= *first && **at < *first + Duration::from_secs(1)).count();
                prop_assert!(within <= 5 + 2, "{within} writes in a second");
            }
        }
    }
}
