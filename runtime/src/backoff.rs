//! How long to wait before the next try.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Waits that double from the first to the longest, each shortened by a random part of up to a
/// half, so that a fleet that failed together does not come back together.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Waits from `first` to `longest`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// How long to wait now.
    pub fn next_wait(&mut self) -> Duration {
        let full = self.next;
        self.next = full.saturating_mul(2).min(self.longest);
        jitter(full)
    }

    /// It worked: the next failure begins with the first wait again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Between the half and the whole of a duration.
#[must_use]
pub fn jitter(full: Duration) -> Duration {
    // The keys of a new RandomState are random enough to spread waits.
    let random = RandomState::new().hash_one(0_u8);
    let half = full / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
    half + Duration::from_nanos(random.checked_rem(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_again() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        for full in [1, 2, 4, 5, 5] {
            let full = Duration::from_secs(full);
            let wait = backoff.next_wait();
            assert!(wait >= full / 2 && wait <= full, "{wait:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_secs(1));
    }

    #[test]
    fn no_wait_is_no_wait() {
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    }
}
