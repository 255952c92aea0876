//! The time that decisions are made by. It goes forward at the pace of the machine's monotonic clock,
//! so that an age is an age: when somebody sets the wall clock back or forward, no deadline passes
//! early and nothing waits until the old time comes round again.
//!
//! It begins at the wall clock's time and follows it slowly, at most a tenth faster or slower than
//! time passes: stamps that people read become right again, and an age is never wrong by more than a
//! tenth. Stamps that another process wrote, by another clock, are dealt with where they are read.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// It is corrected by at most one part in so many of the time that has passed.
const SLOWLY: i32 = 10;

/// The clock itself, as a function of the two that it is made from.
#[derive(Debug, Clone, Copy)]
pub struct Steady {
    /// What it showed last.
    shown: Timestamp,
    /// The monotonic clock then.
    monotonic: Duration,
}

impl Steady {
    /// Begins at the wall clock's time.
    #[must_use]
    pub const fn new(wall: Timestamp, monotonic: Duration) -> Self {
        Self {
            shown: wall,
            monotonic,
        }
    }

    /// The time, given what the other two clocks show.
    pub fn read(&mut self, wall: Timestamp, monotonic: Duration) -> Timestamp {
        let passed = monotonic.saturating_sub(self.monotonic);
        let passed = SignedDuration::try_from(passed).unwrap_or(SignedDuration::ZERO);
        let most = passed / SLOWLY;
        if let Ok(expected) = self.shown.checked_add(passed) {
            let wrong = wall.duration_since(expected);
            let correction = wrong.clamp(-most, most);
            self.shown = expected.checked_add(correction).unwrap_or(expected);
        }
        self.monotonic = self.monotonic.max(monotonic);
        self.shown
    }
}

/// Now, for all decisions of this process.
#[must_use]
pub fn now() -> Timestamp {
    static CLOCK: OnceLock<(Instant, Mutex<Steady>)> = OnceLock::new();
    let (began, clock) = CLOCK.get_or_init(|| {
        let clock = Steady::new(Timestamp::now(), Duration::ZERO);
        (Instant::now(), Mutex::new(clock))
    });
    let mut clock = clock.lock().unwrap_or_else(PoisonError::into_inner);
    clock.read(Timestamp::now(), began.elapsed())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// At each step some time passes, and somebody sets the wall clock to any other time.
        #[test]
        fn whatever_the_wall_clock_does_an_age_is_wrong_by_a_tenth_at_most(
            steps in prop::collection::vec((0_u64..100_000_000, -1_000_000_i64..1_000_000), 1..50),
        ) {
            let start = Timestamp::from_second(1_700_000_000).unwrap();
            let mut clock = Steady::new(start, Duration::ZERO);
            let (mut monotonic, mut skew) = (Duration::ZERO, SignedDuration::ZERO);
            let mut before = start;
            for (millis, jump) in steps {
                let passed = Duration::from_millis(millis);
                monotonic += passed;
                skew += SignedDuration::from_secs(jump);
                let wall = start + SignedDuration::try_from(monotonic).unwrap() + skew;
                let now = clock.read(wall, monotonic);
                let aged = now.duration_since(before).as_secs_f64();
                let real = passed.as_secs_f64();
                prop_assert!(aged >= real * 0.9 - 1e-6 && aged <= real * 1.1 + 1e-6, "{aged} {real}");
                before = now;
            }
        }

        #[test]
        fn it_is_right_again_after_ten_times_as_long(jump in -10_000_i64..10_000) {
            let start = Timestamp::from_second(1_700_000_000).unwrap();
            let mut clock = Steady::new(start, Duration::ZERO);
            let later = Duration::from_secs(jump.unsigned_abs() * 10);
            let wall = start + SignedDuration::try_from(later).unwrap() + SignedDuration::from_secs(jump);
            prop_assert_eq!(clock.read(wall, later), wall);
        }
    }

    #[test]
    fn it_never_goes_back() {
        let start = Timestamp::from_second(1_700_000_000).unwrap();
        let mut clock = Steady::new(start, Duration::from_secs(5));
        let hour_before = start - SignedDuration::from_hours(1);
        assert_eq!(clock.read(hour_before, Duration::from_secs(5)), start);
        assert_eq!(clock.read(hour_before, Duration::from_secs(4)), start);
        assert!(clock.read(hour_before, Duration::from_secs(6)) > start);
    }
}
