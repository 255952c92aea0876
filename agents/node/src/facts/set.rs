//! Sets of processors and of NUMA nodes, as libvirt writes them: `0-7,^3,12`.

use std::str::FromStr;

/// libvirt's longest mask has 16384 bits, so more parts than this say nothing new.
const MAX_PARTS: usize = 8192;

/// Numbers, as ranges in order that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Set(Vec<(u32, u32)>);

/// A text that is no set of numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a set of numbers")]
pub struct NotASet(String);

impl Set {
    /// How many numbers it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|range| size(*range)).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it has this number.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.0
            .iter()
            .any(|&(first, last)| (first..=last).contains(&number))
    }

    /// How many numbers it has in common with another.
    #[must_use]
    pub fn common(&self, other: &Self) -> u64 {
        let overlaps = self.0.iter().flat_map(|a| {
            let both = other.0.iter().map(|b| (a.0.max(b.0), a.1.min(b.1)));
            both.filter(|(first, last)| first <= last)
        });
        overlaps.map(size).sum()
    }

    /// What is in either.
    #[must_use]
    pub fn union(mut self, other: &Self) -> Self {
        self.0.extend(&other.0);
        self.tidy();
        self
    }

    /// The numbers from nought up to, and without, this one.
    #[must_use]
    pub fn up_to(end: u32) -> Self {
        Self(
            end.checked_sub(1)
                .map(|last| (0, last))
                .into_iter()
                .collect(),
        )
    }

    fn remove(&mut self, first: u32, last: u32) {
        // Ranges that overlap would multiply.
        self.tidy();
        let rest = self.0.iter().flat_map(|&(low, high)| {
            let before = first.checked_sub(1).map(|end| (low, high.min(end)));
            let after = last.checked_add(1).map(|begin| (low.max(begin), high));
            before.into_iter().chain(after)
        });
        self.0 = rest.filter(|(low, high)| low <= high).collect();
    }

    fn tidy(&mut self) {
        self.0.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::with_capacity(self.0.len());
        for &(first, last) in &self.0 {
            match ranges.last_mut() {
                Some(range) if first <= range.1.saturating_add(1) => range.1 = range.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        ranges.shrink_to_fit();
        self.0 = ranges;
    }
}

fn size((first, last): (u32, u32)) -> u64 {
    u64::from(last - first) + 1
}

impl FromIterator<u32> for Set {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut set = Self(numbers.into_iter().map(|number| (number, number)).collect());
        set.tidy();
        set
    }
}

impl FromStr for Set {
    type Err = NotASet;

    fn from_str(text: &str) -> Result<Self, NotASet> {
        let wrong = || NotASet(text.chars().take(64).collect());
        let mut set = Self::default();
        if text.split(',').count() > MAX_PARTS {
            return Err(wrong());
        }
        // From left to right, as libvirt does: what is taken out can come back.
        for part in text.split(',') {
            let part = part.trim();
            let (out, part) = match part.strip_prefix('^') {
                Some(part) => (true, part),
                None => (false, part),
            };
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().map_err(|_| wrong())?;
            let last: u32 = last.trim().parse().map_err(|_| wrong())?;
            if first > last {
                return Err(wrong());
            }
            if out {
                set.remove(first, last);
            } else {
                set.0.push((first, last));
            }
        }
        set.tidy();
        if set.is_empty() {
            Err(wrong())
        } else {
            Ok(set)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(text: &str) -> Set {
        text.parse().unwrap()
    }

    #[test]
    fn sets_are_read_as_libvirt_reads_them() {
        let cases: &[(&str, &[(u32, u32)])] = &[
            ("0", &[(0, 0)]),
            ("0-7,^3", &[(0, 2), (4, 7)]),
            ("^3,0-7", &[(0, 7)]),
            ("4-7,0-3", &[(0, 7)]),
            (" 1 , 3 - 5 ", &[(1, 1), (3, 5)]),
            ("32-63,160-191", &[(32, 63), (160, 191)]),
            ("0-9,^0-4,2", &[(2, 2), (5, 9)]),
            ("0-4294967295", &[(0, u32::MAX)]),
            ("0-4294967295,^4294967295,^0", &[(1, u32::MAX - 1)]),
        ];
        for (text, ranges) in cases {
            assert_eq!(set(text), Set(ranges.to_vec()), "{text}");
        }
    }

    #[test]
    fn what_is_no_set_is_refused() {
        let long = "1,".repeat(MAX_PARTS + 1);
        for text in [
            "",
            " ",
            ",",
            "1,",
            "a",
            "7-3",
            "-1",
            "1-",
            "^",
            "3,^3",
            "1--2",
            "4294967296",
            "all",
            &long,
        ] {
            assert!(text.parse::<Set>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_whole_range_is_counted() {
        assert_eq!(set("0-4294967295").len(), 1 << 32);
        assert_eq!(set("0-4294967295").common(&set("5-9,20")), 6);
        assert_eq!(Set::up_to(4), set("0-3"));
        assert!(Set::up_to(0).is_empty());
    }

    fn parts() -> impl Strategy<Value = Vec<(bool, u32, u32)>> {
        prop::collection::vec((prop::bool::weighted(0.3), 0_u32..64, 0_u32..12), 1..12)
    }

    fn model(parts: &[(bool, u32, u32)]) -> (String, BTreeSet<u32>) {
        let mut numbers = BTreeSet::new();
        let mut texts = Vec::new();
        for &(out, first, more) in parts {
            let last = first + more;
            texts.push(format!("{}{first}-{last}", if out { "^" } else { "" }));
            for number in first..=last {
                if out {
                    numbers.remove(&number);
                } else {
                    numbers.insert(number);
                }
            }
        }
        (texts.join(","), numbers)
    }

    proptest! {
        #[test]
        fn a_set_is_what_a_set_of_numbers_is(a in parts(), b in parts()) {
            let (text, numbers) = model(&a);
            let (other_text, others) = model(&b);
            prop_assert_eq!(text.parse::<Set>().is_ok(), !numbers.is_empty());
            if let (Ok(set), Ok(other)) = (text.parse::<Set>(), other_text.parse::<Set>()) {
                prop_assert_eq!(set.len(), numbers.len() as u64);
                prop_assert!((0..80).all(|number| set.contains(number) == numbers.contains(&number)));
                prop_assert_eq!(set.common(&other), numbers.intersection(&others).count() as u64);
                prop_assert_eq!(&set, &numbers.iter().copied().collect::<Set>());
                let both: Set = numbers.union(&others).copied().collect();
                prop_assert_eq!(set.union(&other), both);
            }
        }

        #[test]
        fn no_text_breaks_it(text in "[0-9,^ -]{0,40}|\\PC{0,40}") {
            drop(text.parse::<Set>());
        }
    }
}
