//! Amounts of cpu and memory as people write them: `500m`, `0.5`, `512Mi`, `4G`. One parser for the whole
//! product; integer arithmetic; nothing is ever rounded, capped or guessed.
//!
//! cpu: decimals and `m`, a whole number of thousandths of a core. Memory and storage: decimals and one of
//! `k M G T P E` (powers of 1000) or `Ki Mi Gi Ti Pi Ei` (powers of 1024), a whole number of bytes.

use std::fmt;

/// The longest text that is looked at.
pub const MAX_LENGTH: usize = 32;

/// Why an amount is refused. Quotes it, and where it falls between two allowed ones, names both.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {reason}")]
pub struct InvalidQuantity {
    /// The amount as it was written, cut to [`MAX_LENGTH`] characters.
    pub text: String,
    /// What is wrong with it and what is allowed.
    pub reason: String,
}

impl InvalidQuantity {
    fn new(text: &str, reason: impl Into<String>) -> Self {
        Self { text: text.chars().take(MAX_LENGTH).collect(), reason: reason.into() }
    }
}

/// Suffixes of memory, largest factor first.
const MEMORY_UNITS: [(&str, i64); 12] = [
    ("Ei", 1 << 60),
    ("E", 1_000_000_000_000_000_000),
    ("Pi", 1 << 50),
    ("P", 1_000_000_000_000_000),
    ("Ti", 1 << 40),
    ("T", 1_000_000_000_000),
    ("Gi", 1 << 30),
    ("G", 1_000_000_000),
    ("Mi", 1 << 20),
    ("M", 1_000_000),
    ("Ki", 1 << 10),
    ("k", 1_000),
];

/// Thousandths of a core from `2`, `500m`, `0.5`.
///
/// # Errors
/// [`InvalidQuantity`] for anything that is no whole, positive number of thousandths within 63 bits.
pub fn parse_cpu(text: &str) -> Result<i64, InvalidQuantity> {
    let (number, suffix) = split(text)?;
    let factor = match suffix {
        "" => 1000,
        "m" => 1,
        _ => {
            return Err(InvalidQuantity::new(
                text,
                format!(
                    "has the unknown suffix {suffix:?}; write cores (2, 0.5) or thousandths of a core (500m)"
                ),
            ));
        }
    };
    scaled(text, number, factor, &|millis| CpuMillis(millis).to_string())
}

/// Bytes from `536870912`, `512Mi`, `1.5Gi`, `4G`.
///
/// # Errors
/// [`InvalidQuantity`] for anything that is no whole, positive number of bytes within 63 bits.
pub fn parse_memory(text: &str) -> Result<i64, InvalidQuantity> {
    let (number, suffix) = split(text)?;
    let factor = match MEMORY_UNITS.iter().find(|(name, _)| *name == suffix) {
        Some((_, factor)) => *factor,
        None if suffix.is_empty() => 1,
        None => return Err(InvalidQuantity::new(text, unknown_memory_suffix(suffix))),
    };
    scaled(text, number, factor, &|bytes| bytes.to_string())
}

fn unknown_memory_suffix(suffix: &str) -> String {
    let allowed = "write k M G T P E (powers of 1000) or Ki Mi Gi Ti Pi Ei (powers of 1024)";
    let hint = match suffix {
        "K" => "; did you mean k (1000) or Ki (1024)?",
        "m" => "; thousandths of a byte make no sense, did you mean M or Mi?",
        _ => "",
    };
    format!("has the unknown suffix {suffix:?}; {allowed}{hint}")
}

/// The digits (with at most one point among them) and what follows.
fn split(text: &str) -> Result<(&str, &str), InvalidQuantity> {
    let refuse = |reason: &str| Err(InvalidQuantity::new(text, reason));
    if text.is_empty() {
        return refuse("is empty; leave the field out, or give an amount");
    }
    if text.chars().count() > MAX_LENGTH {
        return refuse("is longer than 32 characters");
    }
    if text.starts_with(['-', '+']) {
        return refuse("has a sign; amounts are positive and written without one");
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if number.is_empty() || whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return refuse("does not begin with a number in ASCII digits, such as 2 or 0.5");
    }
    if suffix.starts_with(['e', 'E']) && suffix.len() > 1 && suffix != "Ei" {
        return refuse("has an exponent; write the number out, or use a suffix");
    }
    Ok((number, suffix))
}

/// `number × factor`, exactly. `show` prints one of the two neighbours of a number that falls between.
fn scaled(
    text: &str,
    number: &str,
    factor: i64,
    show: &dyn Fn(i64) -> String,
) -> Result<i64, InvalidQuantity> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let factor = factor.unsigned_abs();
    // School multiplication on decimal digits, least significant first: 31 digits times 61 bits fits no
    // machine word, and this cannot overflow.
    let mut product: Vec<u8> = Vec::with_capacity(64);
    let mut carry: u128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()).rev() {
        let step = u128::from(digit - b'0') * u128::from(factor) + carry;
        product.push(u8::try_from(step % 10).unwrap_or(0));
        carry = step / 10;
    }
    while carry > 0 {
        product.push(u8::try_from(carry % 10).unwrap_or(0));
        carry /= 10;
    }
    let exact = product[..fraction.len()].iter().all(|digit| *digit == 0);
    let mut value: i64 = 0;
    for digit in product[fraction.len()..].iter().rev() {
        value = value.checked_mul(10).and_then(|v| v.checked_add(i64::from(*digit))).ok_or_else(|| {
            InvalidQuantity::new(text, format!("is too large; the largest is {}", show(i64::MAX)))
        })?;
    }
    if !exact {
        let above = value.checked_add(1).map(show);
        let nearest = match (value, above) {
            (0, Some(above)) => format!("the nearest is {above}"),
            (_, Some(above)) => format!("the nearest are {} and {above}", show(value)),
            (_, None) => format!("the nearest is {}", show(value)),
        };
        return Err(InvalidQuantity::new(text, format!("would have to be rounded; {nearest}")));
    }
    if value == 0 {
        return Err(InvalidQuantity::new(text, "is zero; leave the field out, or give a positive amount"));
    }
    Ok(value)
}

/// Prints thousandths of a core so that they parse back: `2`, `500m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuMillis(pub i64);

impl fmt::Display for CpuMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 % 1000 == 0 { write!(f, "{}", self.0 / 1000) } else { write!(f, "{}m", self.0) }
    }
}

/// Prints bytes in the largest unit that is exact, so that they parse back: `512Mi`, `4G`, `1000001`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub i64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = MEMORY_UNITS.iter().find(|(_, factor)| self.0 >= *factor && self.0 % factor == 0);
        match exact {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RQ-01
    #[test]
    fn memory_suffixes_mean_what_they_say_and_unknown_ones_are_errors() {
        for (text, bytes) in [
            ("500k", 500_000),
            ("500Ki", 512_000),
            ("1M", 1_000_000),
            ("1Mi", 1_048_576),
            ("4G", 4_000_000_000),
            ("4Gi", 4_294_967_296),
            ("1T", 1_000_000_000_000),
            ("1Ti", 1 << 40),
            ("1P", 1_000_000_000_000_000),
            ("1Pi", 1 << 50),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            ("1.5Gi", 1_610_612_736),
            ("0.5k", 500),
            ("1", 1),
            ("0001", 1),
            ("9223372036854775807", i64::MAX),
            ("1.000000000000000000000000000Ei", 1 << 60),
            ("0.0000000000009094947017729282Ti", 0),
        ] {
            match bytes {
                0 => assert!(parse_memory(text).is_err(), "{text}"),
                _ => assert_eq!(parse_memory(text), Ok(bytes), "{text}"),
            }
        }
        for text in [
            "500K", "500ki", "500KB", "500kB", "500KiB", "1m", "4g", "4GB", "1 Gi", "1Gi ", " 1Gi", "4gi",
            "4i", "1Zi",
        ] {
            let error = parse_memory(text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("{text:?}")), "{error}");
        }
    }

    /// RQ-03
    #[test]
    fn exponents_foreign_digits_and_words_are_errors_that_quote_the_input() {
        for text in [
            "1e3",
            "1E3",
            "1e+3",
            "1e-3",
            "1e0003",
            "2E6024865272343",
            "1e",
            "e3",
            "1e3.5",
            "0x10",
            "1_000",
            "١٢٣",
            "NaN",
            "inf",
            "",
            ".",
            "1.",
            ".5",
            "1..2",
            "1.2.3",
            "-1",
            "+1",
            "0",
            "0.0",
            "0Gi",
            "9223372036854775808",
            "8Ei",
            "10E",
            "99999999999999999999999999999999",
            "1\u{0}",
            "1,5",
            "１",
        ] {
            let memory = parse_memory(text).expect_err(text);
            assert_eq!(memory.text, text);
            assert!(parse_cpu(text).is_err(), "{text}");
        }
        let long = "1".repeat(33);
        assert!(parse_memory(&long).expect_err("33 digits").to_string().contains("longer than 32"));
        assert!(parse_memory(&long[1..]).expect_err("32 digits").to_string().contains("too large"));
        let foreign = parse_memory(&"١".repeat(32)).expect_err("32 characters, 64 bytes").to_string();
        assert!(foreign.contains("ASCII digits"), "{foreign}");
        // The suffix for exa is no exponent.
        assert_eq!(parse_memory("1E"), Ok(1_000_000_000_000_000_000));
        assert!(parse_cpu("1E").is_err());
    }

    /// RQ-05
    #[test]
    fn what_would_be_rounded_is_refused_with_its_neighbours() {
        for (text, nearest) in [
            ("1.2Gi", "1288490188 and 1288490189"),
            ("0.1Gi", "107374182 and 107374183"),
            ("1.0000001Mi", "1048576 and 1048577"),
            ("0.1", "nearest is 1"),
            ("9223372036854775807.5", "nearest is 9223372036854775807"),
        ] {
            let error = parse_memory(text).expect_err(text).to_string();
            assert!(error.contains(nearest), "{error}");
        }
        let error = parse_cpu("0.0015").expect_err("half a thousandth").to_string();
        assert!(error.contains("1m and 2m"), "{error}");
        let ten: i64 = (0..10).map(|_| parse_cpu("0.3").expect("0.3 is 300m")).sum();
        assert_eq!(CpuMillis(ten).to_string(), "3");
    }

    #[test]
    fn cpu_takes_cores_and_thousandths() {
        for (text, millis) in
            [("2", 2000), ("500m", 500), ("0.5", 500), ("0.001", 1), ("1.250", 1250), ("1.0m", 1)]
        {
            assert_eq!(parse_cpu(text), Ok(millis), "{text}");
        }
        for text in ["0", "0m", "0.0001", "1.5m", "2 ", "2cores", "2M", "2k", "9223372036854775.808", "500M"]
        {
            assert!(parse_cpu(text).is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_print_in_the_largest_exact_unit() {
        for (bytes, text) in [
            (4_294_967_296, "4Gi"),
            (4_000_000_000, "4G"),
            (1_024_000, "1000Ki"),
            (1_000_001, "1000001"),
            (999, "999"),
            (i64::MAX, "9223372036854775807"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_back(n in 1_i64..=i64::MAX) {
            prop_assert_eq!(parse_memory(&Bytes(n).to_string()), Ok(n));
            prop_assert_eq!(parse_cpu(&CpuMillis(n).to_string()), Ok(n));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in "\\PC{0,40}") {
            let _ = (parse_memory(&text), parse_cpu(&text));
        }

        #[test]
        fn decimals_agree_with_wide_integers(whole in 0_u64..1_000_000, fraction in 0_u32..1_000_000) {
            let exact = (u128::from(whole) * 1_000_000 + u128::from(fraction)) << 30;
            let parsed = parse_memory(&format!("{whole}.{fraction:06}Gi"));
            if exact == 0 || exact % 1_000_000 != 0 {
                prop_assert!(parsed.is_err());
            } else {
                prop_assert_eq!(parsed.map(i128::from), Ok(i128::try_from(exact / 1_000_000).unwrap()));
            }
        }
    }
}
