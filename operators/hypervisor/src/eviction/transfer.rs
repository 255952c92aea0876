//! How far the transfer of an instance is, and whether it gets anywhere.
//!
//! Memory is sent in passes: what the guest changes during one is sent in the next. So what remains
//! falls in every pass, also when the guest changes all of it again and again, and jumps up when the
//! next begins. A transfer gets nearer to its end when it jumps less high than before. Passes may be
//! much shorter than the time between two looks, or take minutes.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

/// How far a transfer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// When that was read.
    pub at: Timestamp,
    /// Bytes that are to be sent.
    pub remaining: u64,
    /// All bytes.
    pub total: u64,
    /// How much the guest is slowed down, in percent.
    pub throttle: Option<i32>,
    /// As long back as it matters, the newest last.
    looks: VecDeque<Look>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    at: Timestamp,
    remaining: u64,
    /// What remained when its pass was seen first.
    height: u64,
}

impl Transfer {
    /// One that is not told.
    #[must_use]
    pub const fn untold(at: Timestamp) -> Self {
        Self {
            at,
            remaining: 0,
            total: 0,
            throttle: None,
            looks: VecDeque::new(),
        }
    }

    /// With newer numbers. What is older than `stall` does not matter any more.
    #[must_use]
    pub fn next(
        before: Option<&Self>,
        at: Timestamp,
        remaining: u64,
        total: u64,
        stall: SignedDuration,
    ) -> Self {
        let mut looks = before.map_or_else(VecDeque::new, |before| before.looks.clone());
        let same_pass = looks.back().filter(|last| last.remaining >= remaining);
        let height = same_pass.map_or(remaining, |last| last.height);
        looks.push_back(Look {
            at,
            remaining,
            height,
        });
        // One that is older stays: it tells that the time between was watched.
        while looks.get(1).is_some_and(|second| second.at <= at - stall) {
            looks.pop_front();
        }
        Self {
            at,
            remaining,
            total,
            throttle: before.and_then(|before| before.throttle),
            looks,
        }
    }

    /// Whether it has got no nearer to its end for so long: in the newer half of that time about as
    /// much remained as in the older, and the present pass began about as high as those of then.
    /// What nobody tells anew is as it was.
    #[must_use]
    pub fn has_stalled(&self, now: Timestamp, stall: SignedDuration) -> bool {
        let (begin, middle) = (now - stall, now - stall / 2);
        let matters = self.looks.iter().rposition(|look| look.at <= begin);
        let (Some(matters), Some(last)) = (matters, self.looks.back()) else {
            // It is not watched for so long.
            return false;
        };
        let looks = self.looks.range(matters..);
        let most = |newer: bool| {
            let half = looks.clone().filter(|look| (look.at >= middle) == newer);
            half.map(|look| look.remaining).max().unwrap_or(0)
        };
        let older = looks.clone().filter(|look| look.at < middle);
        let highest = older.map(|look| look.height).max().unwrap_or(0);
        // A pass is under way already when it is seen first. One that only falls has no slack.
        let jumps = looks.clone().zip(looks.clone().skip(1));
        let jumps = jumps.map(|(one, next)| next.remaining.saturating_sub(one.remaining));
        let slack = jumps.max().unwrap_or(0) / 10;
        last.remaining > 0
            && most(true).max(last.remaining) + slack >= most(false)
            && last.height + slack >= highest
    }

    /// How much of it is done, in steps of five percent.
    #[must_use]
    pub fn percent(&self) -> Option<i32> {
        let done = self.total.saturating_sub(self.remaining);
        let percent = done.saturating_mul(100).checked_div(self.total)?;
        i32::try_from(percent.min(100) / 5 * 5).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const STALL: SignedDuration = SignedDuration::from_secs(180);

    /// What remains of a guest, by the millisecond, when it changes so much of its memory anew in
    /// each pass.
    struct Guest {
        memory: u64,
        /// Per second.
        bandwidth: u64,
        /// So much of what was sent in a pass is sent again in the next, in percent; at most `hot`.
        again: u64,
        hot: u64,
    }

    impl Guest {
        /// `None`: it is done.
        fn remaining(&self, mut millis: u64) -> Option<u64> {
            let mut pass = self.memory;
            loop {
                let takes = pass * 1000 / self.bandwidth;
                if takes < 300 {
                    return None;
                }
                if millis < takes {
                    return Some(pass - millis * self.bandwidth / 1000);
                }
                millis -= takes;
                pass = (pass * self.again / 100).min(self.hot);
            }
        }

        /// When it is said to have stalled, looked at in such intervals. In milliseconds.
        fn stalls(&self, intervals: &[u64], until: u64) -> Option<u64> {
            let mut transfer = None;
            let mut millis = 0;
            for interval in intervals.iter().cycle() {
                millis += interval;
                if millis > until {
                    break;
                }
                let at = Timestamp::from_millisecond(i64::try_from(millis).unwrap()).unwrap();
                let remaining = self.remaining(millis)?;
                let next = Transfer::next(transfer.as_ref(), at, remaining, self.memory, STALL);
                if next.has_stalled(at, STALL) {
                    return Some(millis);
                }
                transfer = Some(next);
            }
            None
        }
    }

    #[test]
    fn what_is_looked_at_is_not_kept_for_ever() {
        let mut transfer = Transfer::untold(Timestamp::UNIX_EPOCH);
        for second in 0..1000 {
            let at = Timestamp::from_second(second).unwrap();
            transfer = Transfer::next(Some(&transfer), at, 5, 10, STALL);
        }
        assert_eq!(transfer.looks.len(), 181);
        assert!(transfer.has_stalled(transfer.at, STALL));
        assert_eq!(transfer.percent(), Some(50));
    }

    #[test]
    fn what_is_told_no_more_stays_as_it_was() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let before = Transfer::next(None, at(0), 9, 10, STALL);
        let transfer = Transfer::next(Some(&before), at(30), 5, 10, STALL);
        assert!(!transfer.has_stalled(at(209), STALL));
        assert!(transfer.has_stalled(at(210), STALL));
    }

    /// As it was read of QEMU: the guest writes 24 MiB each second, 8 can be sent.
    #[test]
    fn a_guest_that_never_converges_has_stalled_although_less_remains_now_and_then() {
        let kib = [
            119_712, 106_592, 32_124, 19_004, 5_884, 24_572, 11_452, 31_104, 17_983, 4_864, 24_516,
            10_576, 30_228,
        ];
        let stall = SignedDuration::from_secs(10);
        let mut transfer = Transfer::untold(Timestamp::UNIX_EPOCH);
        let mut stalled = Vec::new();
        for (n, remaining) in (0..).zip(kib) {
            let at = Timestamp::from_millisecond(1610 * n).unwrap();
            transfer = Transfer::next(Some(&transfer), at, remaining << 10, 128 * MIB, stall);
            stalled.push(transfer.has_stalled(at, stall));
        }
        assert_eq!(stalled, [[false; 12].as_slice(), &[true]].concat());
    }

    /// Never quite the same, as it is with all clocks.
    fn intervals(most: u64) -> impl Strategy<Value = Vec<u64>> {
        (1_000..=most).prop_flat_map(|every| prop::collection::vec(every * 9 / 10..=every, 20))
    }

    proptest! {
        /// However long a pass takes, and however often it is looked at.
        #[test]
        fn whoever_changes_as_much_as_is_sent_stalls(
            memory in 256_u64..65_536, hot in 1_u64..100, bandwidth in 8_u64..2048, every in intervals(15_000),
        ) {
            let memory = memory.max(bandwidth) * MIB;
            let guest = Guest {
                memory, bandwidth: bandwidth * MIB, again: 100, hot: (memory * hot / 100).max(bandwidth * MIB),
            };
            let first = memory * 1000 / guest.bandwidth;
            let pass = guest.hot.min(memory) * 1000 / guest.bandwidth;
            prop_assume!(first < 3_600_000);
            let until = first + 20 * pass.max(360_000);
            prop_assert!(guest.stalls(&every, until).is_some());
        }

        /// The last passes are short and not looked at.
        #[test]
        fn whoever_converges_does_not_stall(
            memory in 256_u64..1_048_576, bandwidth in 64_u64..2048, again in 1_u64..80, every in intervals(5_000),
        ) {
            let guest = Guest {
                memory: memory * MIB, bandwidth: bandwidth * MIB, again, hot: u64::MAX,
            };
            prop_assert_eq!(guest.stalls(&every, u64::MAX / 2), None);
        }
    }
}
