//! Numbers with units: libvirt's on the way in, Kubernetes' on the way out.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A number or a unit that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is no whole number.
    #[error("\"{0}\" is not a whole number")]
    Number(String),
    /// There is no such unit.
    #[error("\"{0}\" is not a unit")]
    Unit(String),
    /// It is more than 64 bits hold.
    #[error("\"{0}\" is too large")]
    Large(String),
}

/// A whole number.
///
/// # Errors
///
/// When it is none, or too large.
pub fn number<T: TryFrom<u64>>(text: &str) -> Result<T, Unreadable> {
    let text = text.trim();
    let short = || text.chars().take(64).collect();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Unreadable::Number(short()));
    }
    let number: u64 = text.parse().map_err(|_| Unreadable::Large(short()))?;
    T::try_from(number).map_err(|_| Unreadable::Large(short()))
}

/// An amount of memory in bytes. By libvirt's rules: KiB where there is no unit, `b` and `bytes`;
/// `KB` is a thousand, `k` and `KiB` are 1024, and so on up to `E`, in any case.
///
/// # Errors
///
/// When the number or the unit is none, or the result is too large.
pub fn bytes(text: &str, unit: Option<&str>) -> Result<u64, Unreadable> {
    let unit = unit.map(str::trim).filter(|unit| !unit.is_empty());
    let scale = match unit.map(str::to_ascii_lowercase).as_deref() {
        None => 1024,
        Some("b" | "byte" | "bytes") => 1,
        Some(unit) => {
            scale(unit).ok_or_else(|| Unreadable::Unit(unit.chars().take(64).collect()))?
        }
    };
    let amount: u64 = number(text)?;
    amount
        .checked_mul(scale)
        .ok_or_else(|| Unreadable::Large(format!("{amount} {}", unit.unwrap_or("KiB"))))
}

fn scale(unit: &str) -> Option<u64> {
    let mut letters = unit.chars();
    let prefix = letters.next()?;
    let power = (1..)
        .zip("kmgtpe".chars())
        .find(|(_, known)| *known == prefix)?
        .0;
    let base: u64 = match letters.as_str() {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return None,
    };
    base.checked_pow(power)
}

/// An amount of memory, in the form that Kubernetes gives it: the largest binary suffix that leaves
/// a whole number. The deployed agent writes the same text.
#[must_use]
pub fn memory(bytes: u64) -> Quantity {
    if bytes < 1024 {
        return count(bytes);
    }
    suffixed(bytes, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// A number of things, in the form that Kubernetes gives it: a thousand is `1k`.
#[must_use]
pub fn count(number: u64) -> Quantity {
    suffixed(number, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

fn suffixed(mut number: u64, base: u64, suffixes: &[&str]) -> Quantity {
    let mut suffix = "";
    for next in suffixes {
        suffix = next;
        if number == 0 || !number.is_multiple_of(base) {
            break;
        }
        number /= base;
    }
    Quantity(format!("{number}{suffix}"))
}

/// A quantity in a form that is the same for equal quantities: `1Gi`, `1024Mi` and `1073741824` are
/// one amount. What cannot be read stays as it is. For comparisons only.
#[must_use]
pub fn comparable(quantity: &Quantity) -> Quantity {
    match billionths(&quantity.0) {
        Some(amount) => Quantity(format!("{amount}n")),
        None => quantity.clone(),
    }
}

fn billionths(text: &str) -> Option<i128> {
    let text = text.trim();
    let end = text
        .find(|letter: char| !matches!(letter, '0'..='9' | '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (amount, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = amount.split_once('.').unwrap_or((amount, ""));
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let decimals = i32::try_from(fraction.len()).ok()?;
    let (factor, exponent) = match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1_i128 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?),
    };
    let amount = mantissa.checked_mul(factor)?;
    let shift = exponent.checked_add(9)?.checked_sub(decimals)?;
    let power = 10_i128.checked_pow(shift.unsigned_abs())?;
    if shift >= 0 {
        amount.checked_mul(power)
    } else {
        // Finer than a billionth: not ours, and not worth rounding.
        (amount % power == 0).then_some(amount / power)
    }
}

/// A number times a factor, rounded down. The factor is taken as people write it: 100 times 1.15 is
/// 115, though the nearest binary fraction is a little less.
#[must_use]
pub fn times(number: u64, factor: f64) -> u64 {
    if factor.is_nan() || factor <= 0.0 {
        return 0;
    }
    // The shortest text that stands for the factor.
    let text = factor.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let product = || {
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let power = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        Some(u128::from(number).checked_mul(digits)? / power)
    };
    // Too many digits to count with: the factor is very large or very small.
    let product = product().unwrap_or(if factor >= 1.0 && number > 0 {
        u128::MAX
    } else {
        0
    });
    u64::try_from(product).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn memory_has_libvirts_units() {
        let cases: &[(&str, Option<&str>, u64)] = &[
            ("1", None, 1024),
            ("1", Some(""), 1024),
            (" 6906436 ", Some("KiB"), 6_906_436 << 10),
            ("512", Some("b"), 512),
            ("512", Some("bytes"), 512),
            ("512", Some("byte"), 512),
            ("3", Some("KB"), 3000),
            ("3", Some("k"), 3 << 10),
            ("3", Some("K"), 3 << 10),
            ("3", Some("kib"), 3 << 10),
            ("3", Some("MB"), 3_000_000),
            ("3", Some("M"), 3 << 20),
            ("3", Some("MiB"), 3 << 20),
            ("3", Some("GB"), 3_000_000_000),
            ("3", Some("g"), 3 << 30),
            ("3", Some("GiB"), 3 << 30),
            ("3", Some("TB"), 3_000_000_000_000),
            ("3", Some("T"), 3 << 40),
            ("3", Some("PiB"), 3 << 50),
            ("3", Some("PB"), 3_000_000_000_000_000),
            ("3", Some("E"), 3 << 60),
            ("18446744073709551615", Some("b"), u64::MAX),
            ("0", Some("EiB"), 0),
        ];
        for (text, unit, expected) in cases {
            assert_eq!(bytes(text, *unit), Ok(*expected), "{text} {unit:?}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_and_named() {
        let number = |text: &str| Unreadable::Number(text.into());
        let unit = |text: &str| Unreadable::Unit(text.into());
        let large = |text: &str| Unreadable::Large(text.into());
        let cases = [
            ("", None, number("")),
            ("-1", None, number("-1")),
            ("+1", None, number("+1")),
            ("1.5", Some("GiB"), number("1.5")),
            ("0x10", None, number("0x10")),
            ("many", None, number("many")),
            ("1", Some("pages"), unit("pages")),
            ("1", Some("KiBi"), unit("kibi")),
            ("1", Some("Kbit"), unit("kbit")),
            ("1", Some("ß"), unit("ß")),
            ("16", Some("E"), large("16 E")),
            ("18014398509481984", None, large("18014398509481984 KiB")),
            (
                "18446744073709551616",
                Some("b"),
                large("18446744073709551616"),
            ),
        ];
        for (text, unit, expected) in cases {
            assert_eq!(bytes(text, unit), Err(expected), "{text} {unit:?}");
        }
        assert_eq!(super::number::<u32>("4294967296"), Err(large("4294967296")));
        assert_eq!(super::number::<u32>(" 7 "), Ok(7));
    }

    #[test]
    fn quantities_have_the_form_that_the_deployed_agent_writes() {
        let cases = [
            (0, "0"),
            (512, "512"),
            (1000, "1k"),
            (1024, "1Ki"),
            (1025, "1025"),
            (6_906_436 << 10, "6906436Ki"),
            (1_056_000 << 20, "1056000Mi"),
            (32 << 30, "32Gi"),
            (252 << 30, "252Gi"),
            (2 << 60, "2Ei"),
            (u64::MAX, "18446744073709551615"),
        ];
        for (bytes, text) in cases {
            assert_eq!(memory(bytes).0, text);
        }
        for (number, text) in [
            (0, "0"),
            (128, "128"),
            (1000, "1k"),
            (1500, "1500"),
            (1024, "1024"),
        ] {
            assert_eq!(count(number).0, text);
        }
    }

    #[test]
    fn equal_quantities_compare_equal_in_every_notation() {
        let same: &[&[&str]] = &[
            &[
                "1Gi",
                "1024Mi",
                "1073741824",
                "1073741824000m",
                "1073741824.0",
                "+1Gi",
            ],
            &["252Gi", "270582939648"],
            &["1k", "1000", "1e3", "1E3", ".001M", "1000."],
            &["2E", "2e18", "2000000000000000000"],
            &["0", "0Ki", "-0", "0.000"],
            &["1500m", "1.5"],
        ];
        for group in same {
            for text in *group {
                let quantity = |text: &str| comparable(&Quantity(text.into()));
                assert_eq!(quantity(text), quantity(group[0]), "{text}");
            }
        }
        for odd in [
            "",
            "Gi",
            "1 Gi",
            "1GB",
            "1e",
            "1e99",
            "0.0000000001",
            "1-2",
            "--1",
            "x",
        ] {
            let quantity = Quantity(odd.into());
            assert_eq!(comparable(&quantity), quantity);
        }
    }

    #[test]
    fn a_factor_counts_as_it_is_written() {
        let cases = [
            (100, 1.15, 115),
            (128, 2.0, 256),
            (64, 1.1, 70),
            (3, 1.5, 4),
            (1_056_000 << 20, 1.25, 1_320_000 << 20),
            (u64::MAX, 1.0, u64::MAX),
            (u64::MAX, 1.0000000000000002, u64::MAX),
            (u64::MAX, 2.0, u64::MAX),
            (7, 1e300, u64::MAX),
            (0, 1e300, 0),
            (7, 1e-300, 0),
            (7, f64::NAN, 0),
            (7, f64::INFINITY, u64::MAX),
            (7, -1.0, 0),
        ];
        for (number, factor, expected) in cases {
            assert_eq!(times(number, factor), expected, "{number} times {factor}");
        }
    }

    proptest! {
        #[test]
        fn a_quantity_says_its_number_exactly(number: u64) {
            for quantity in [memory(number), count(number)] {
                prop_assert_eq!(billionths(&quantity.0), Some(i128::from(number) * 1_000_000_000));
            }
        }

        #[test]
        fn no_text_breaks_the_readers(text in "[0-9.eEKi+-]{0,30}|\\PC{0,30}", unit in "\\PC{0,6}") {
            drop(bytes(&text, Some(&unit)));
            drop(comparable(&Quantity(text)));
        }

        #[test]
        fn whole_factors_multiply(number in 0_u64..1 << 50, factor in 1_u32..1000) {
            prop_assert_eq!(times(number, f64::from(factor)), number * u64::from(factor));
        }

        #[test]
        fn a_factor_of_at_least_one_takes_nothing_away(number: u64, factor in 1.0_f64..1e6) {
            prop_assert!(times(number, factor) >= number);
        }
    }
}
