//! Which remote is tried next, and when.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A connection that has lived for as long as this was good.
const STABLE: Duration = Duration::from_secs(5);

/// Goes round the remotes: each is tried at once, and after a whole round there is a wait, which
/// doubles from the first to the longest.
#[derive(Debug)]
pub struct Rotation {
    remotes: usize,
    current: usize,
    /// How many have failed since the last wait, or since one was good.
    failed: usize,
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Rotation {
    /// Begins with any of the remotes, so that a fleet spreads over them.
    pub fn new(remotes: usize, first: Duration, longest: Duration) -> Self {
        let remotes = remotes.max(1);
        let spread = usize::try_from(random() % 65_536).unwrap_or(0);
        Self {
            remotes,
            current: spread.checked_rem(remotes).unwrap_or(0),
            failed: 0,
            first,
            longest,
            next: first,
        }
    }

    /// The remote whose turn it is.
    pub fn current(&self) -> usize {
        self.current
    }

    /// It was good for so long, and is lost: the next one is tried after this wait.
    ///
    /// One that is lost at once is as good as one that failed, or two such remotes would be tried
    /// in turns without a pause.
    pub fn lost(&mut self, lived: Duration) -> Duration {
        if lived >= STABLE {
            self.failed = 0;
            self.next = self.first;
        }
        self.failed()
    }

    /// It is not good: the next one is tried after this wait.
    pub fn failed(&mut self) -> Duration {
        self.current = (self.current + 1).checked_rem(self.remotes).unwrap_or(0);
        self.failed += 1;
        if self.failed < self.remotes {
            return Duration::ZERO;
        }
        self.failed = 0;
        let full = self.next;
        self.next = full.saturating_mul(2).min(self.longest);
        jitter(full)
    }
}

/// Between the half and the whole of a duration: who failed together does not come back together.
fn jitter(full: Duration) -> Duration {
    let half = full / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
    half + Duration::from_nanos(random().checked_rem(nanos).unwrap_or(0))
}

/// The keys of a new `RandomState` are random enough to spread things.
fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn every_remote_has_its_turn_before_there_is_a_wait() {
        let mut rotation = Rotation::new(3, SECOND, 5 * SECOND);
        let begin = rotation.current();
        assert!(begin < 3);
        for full in [1, 2, 4, 5, 5] {
            assert_eq!(rotation.failed(), Duration::ZERO);
            assert_eq!(rotation.failed(), Duration::ZERO);
            let (wait, full) = (rotation.failed(), full * SECOND);
            assert!(wait >= full / 2 && wait <= full, "{wait:?} of {full:?}");
            assert_eq!(rotation.current(), begin);
        }
        // One that was good and is lost is not waited for: there are others.
        assert_eq!(rotation.lost(STABLE), Duration::ZERO);
        assert_eq!(rotation.current(), (begin + 1) % 3);
        assert_eq!(rotation.failed(), Duration::ZERO);
        assert!(rotation.failed() <= SECOND);
    }

    #[test]
    fn remotes_that_are_lost_at_once_are_waited_for() {
        let mut rotation = Rotation::new(2, SECOND, 5 * SECOND);
        assert_eq!(rotation.lost(Duration::ZERO), Duration::ZERO);
        assert!(rotation.lost(SECOND) >= SECOND / 2);
        assert_eq!(rotation.lost(Duration::ZERO), Duration::ZERO);
        assert!(rotation.lost(SECOND) >= SECOND);
    }

    #[test]
    fn a_single_remote_is_waited_for() {
        let mut rotation = Rotation::new(1, SECOND, SECOND);
        assert!(rotation.failed() >= SECOND / 2);
        assert_eq!(rotation.current(), 0);
        assert_eq!(Rotation::new(0, SECOND, SECOND).current(), 0);
    }
}
