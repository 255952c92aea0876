//! Numbers as the first version of the agent wrote them: Go's durations and IEC sizes.

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// `0s`, `87ms`, `12.345s`, `1m3.5s`, `1h0m0s`.
pub(super) fn duration(millis: u64) -> String {
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let (seconds, rest) = (millis / 1000 % 60, millis % 1000);
    let mut text = String::new();
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if hours > 0 || minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    text.push_str(&seconds.to_string());
    if rest > 0 {
        let fraction = format!("{rest:03}");
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    text.push('s');
    text
}

/// `0 B`, `4.0 KiB`, `1.1 GiB`, `32 GiB`: one digit after the point below ten, none above.
pub(super) fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0_u32;
    while unit < 6 && (bytes >> (10 * unit)) >= 1024 {
        unit += 1;
    }
    // In tenths, rounded half up, in integers.
    let one = 1_u128 << (10 * unit);
    let tenths = (u128::from(bytes) * 10 + one / 2) / one;
    let name = usize::try_from(unit)
        .ok()
        .and_then(|index| UNITS.get(index))
        .copied()
        .unwrap_or_default();
    if tenths < 100 {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    } else {
        format!("{} {name}", (tenths + 5) / 10)
    }
}

/// `1.1 GiB/s`.
pub(super) fn size_per_second(bytes: u64) -> String {
    format!("{}/s", size(bytes))
}

/// `2048/s`.
pub(super) fn per_second(count: u64) -> String {
    format!("{count}/s")
}

/// `20%`.
pub(super) fn percent(part: i64) -> String {
    format!("{part}%")
}

/// A number in digits and small letters, for names.
pub(super) fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        let digit = u32::try_from(number % 36).unwrap_or(0);
        digits.push(char::from_digit(digit, 36).unwrap_or('0'));
        number /= 36;
        if number == 0 {
            break;
        }
    }
    digits.iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (millis, text) in [
            (0, "0s"),
            (1, "1ms"),
            (87, "87ms"),
            (999, "999ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (12_345, "12.345s"),
            (3404, "3.404s"),
            (60_000, "1m0s"),
            (63_500, "1m3.5s"),
            (3_600_000, "1h0m0s"),
            (3_600_040, "1h0m0.04s"),
            // The deployed agent overflowed above 4.3 s (W61).
            (u64::from(u32::MAX), "1193h2m47.295s"),
        ] {
            assert_eq!(duration(millis), text);
        }
        assert!(duration(u64::MAX).ends_with('s'));
    }

    #[test]
    fn sizes_are_iec_with_a_space() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4096, "4.0 KiB"),
            (10_188, "9.9 KiB"),
            (10_240, "10 KiB"),
            (67_641_344, "65 MiB"),
            (1_181_116_006, "1.1 GiB"),
            (21_474_836_480, "20 GiB"),
            (34_359_738_368, "32 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
        assert_eq!(size_per_second(0), "0 B/s");
        assert_eq!(per_second(2048), "2048/s");
        assert_eq!(percent(20), "20%");
    }

    #[test]
    fn names_have_digits_and_small_letters() {
        assert_eq!(base36(36), "10");
        for number in [0, 35, 36, 1_794_909_600_000, u64::MAX] {
            let made = base36(number);
            assert_eq!(u64::from_str_radix(&made, 36), Ok(number), "{made}");
            assert!(
                made.chars()
                    .all(|c| c.is_ascii_digit() || c.is_ascii_lowercase())
            );
        }
    }
}
