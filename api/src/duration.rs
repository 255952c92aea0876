//! Durations as people write them in a spec: `90m`, `1h30m`, `2.5s`.
//!
//! The units are `h`, `m`, `s` and `ms`; a number may have a fraction; parts add up. It is the part
//! of Go's notation that the schema admits.

use std::{fmt, time::Duration};

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseDurationError {
    /// There is no number where one is wanted.
    ExpectNumber {
        /// The text.
        text: String,
    },
    /// The unit is none of `h`, `m`, `s`, `ms`.
    ExpectUnit {
        /// The text.
        text: String,
    },
    /// The sum is too large.
    Overflow {
        /// The text.
        text: String,
    },
}

impl fmt::Display for ParseDurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExpectNumber { text } => {
                write!(
                    f,
                    "failed to read {text:?} as a duration: write it like 90m or 1h30m"
                )
            }
            Self::ExpectUnit { text } => {
                write!(
                    f,
                    "failed to read {text:?} as a duration: units are h, m, s and ms"
                )
            }
            Self::Overflow { text } => {
                write!(f, "failed to read {text:?} as a duration: it is too long")
            }
        }
    }
}

impl std::error::Error for ParseDurationError {}

/// Reads a duration.
///
/// # Errors
///
/// When the text is not a duration; the error says what is wrong with it.
pub fn parse(text: &str) -> Result<Duration, ParseDurationError> {
    let number = || ParseDurationError::ExpectNumber {
        text: text.to_owned(),
    };
    let unit = || ParseDurationError::ExpectUnit {
        text: text.to_owned(),
    };
    let overflow = || ParseDurationError::Overflow {
        text: text.to_owned(),
    };

    let mut total: u64 = 0;
    let mut rest = text;
    if rest.is_empty() {
        return Err(number());
    }
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        if whole.is_empty() {
            return Err(number());
        }
        let (fraction, after) = match after.strip_prefix('.').map(digits) {
            Some(("", _)) => return Err(number()),
            Some(found) => found,
            None => ("", after),
        };
        let end = after
            .find(|c: char| !c.is_ascii_lowercase())
            .unwrap_or(after.len());
        let (name, after) = after.split_at_checked(end).ok_or_else(unit)?;
        let nanos: u64 = match name {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            _ => return Err(unit()),
        };
        let whole: u64 = whole.parse().map_err(|_| overflow())?;
        let mut part = whole.checked_mul(nanos).ok_or_else(overflow)?;
        let mut place = nanos;
        for digit in fraction.bytes() {
            place /= 10;
            part = part
                .checked_add(place.saturating_mul(u64::from(digit - b'0')))
                .ok_or_else(overflow)?;
        }
        total = total.checked_add(part).ok_or_else(overflow)?;
        rest = after;
    }
    Ok(Duration::from_nanos(total))
}

/// Writes a duration in the form [`parse`] reads, rounded down to milliseconds.
#[must_use]
pub fn format(duration: Duration) -> String {
    let millis = duration.as_millis();
    let parts = [
        (millis / 3_600_000, "h"),
        (millis / 60_000 % 60, "m"),
        (millis / 1000 % 60, "s"),
        (millis % 1000, "ms"),
    ];
    let text: String = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_written() {
        let cases = [
            ("90m", Some(5_400_000)),
            ("1h30m", Some(5_400_000)),
            ("2.5s", Some(2_500)),
            ("1.5h", Some(5_400_000)),
            ("100ms", Some(100)),
            ("0s", Some(0)),
            ("1h1m1s1ms", Some(3_661_001)),
            ("", None),
            ("5", None),
            ("m", None),
            ("1.s", None),
            ("1d", None),
            ("-1h", None),
            ("1 h", None),
            ("1hour", None),
            ("99999999999999h", None),
            ("99999999999999999999999999h", None),
            ("1µs", None),
        ];
        for (text, millis) in cases {
            assert_eq!(
                parse(text).ok(),
                millis.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(millis in 0_u64..10_000_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,20}", numeric in "[0-9.hms]{0,30}") {
            for text in [text, numeric] {
                if let Ok(duration) = parse(&text) {
                    prop_assert!(parse(&format(duration)).is_ok());
                }
            }
        }
    }
}
