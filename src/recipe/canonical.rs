//! The canonical form of JSON, by which inputs are compared and hashed: keys in the order of their bytes, no
//! white space, the fewest escapes, and numbers by their exact decimal value, however they were written:
//! `1E+2` is `100`, `10.00` is `10`, `-0` is `0`, and no number is ever turned into a binary one.
//!
//! A number is written as plain digits where that takes at most 21 zeros before the point or 6 behind it (`100`, `0.5`,
//! `0.00000015`), else as `d.ddde±n`: of all ways to write one value, one is chosen.

use sha2::{Digest as _, Sha256};

use super::exact::{Json, NotJson, quote};

/// Zeros that are written out behind a whole number or between the point and the first digit.
const MAX_WHOLE_ZEROS: i128 = 21;
const MAX_FRACTION_ZEROS: i128 = 6;

/// The canonical form of `text`.
///
/// # Errors
/// [`NotJson`] when `text` is not one JSON value.
pub fn canonical(text: &str) -> Result<String, NotJson> {
    Ok(canonical_value(&Json::parse(text)?))
}

/// The canonical form of a value.
#[must_use]
pub fn canonical_value(value: &Json) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Json, out: &mut String) {
    match value {
        Json::Number(text) => out.push_str(&number(text)),
        Json::Array(elements) => {
            out.push('[');
            for (n, element) in elements.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                write(element, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (n, (key, member)) in members.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                quote(key, out);
                out.push(':');
                write(member, out);
            }
            out.push('}');
        }
        plain => plain.write(out),
    }
}

/// The canonical form of one JSON number.
#[must_use]
pub fn number(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let leading = all.len() - all.trim_start_matches('0').len();
    let digits = all[leading..].trim_end_matches('0');
    if digits.is_empty() {
        return "0".to_owned();
    }
    // The value is 0.DIGITS times ten to `exponent` + `shift`.
    let shift = whole.len() as i128 - leading as i128;
    let Some(point) = exponent.parse::<i128>().ok().and_then(|e| e.checked_add(shift)) else {
        return format!("{sign}{}e{}", scientific(digits), add(exponent, shift - 1));
    };
    let length = digits.len() as i128;
    let zeros = |n: i128| "0".repeat(usize::try_from(n).unwrap_or(0));
    if point >= length && point - length <= MAX_WHOLE_ZEROS {
        format!("{sign}{digits}{}", zeros(point - length))
    } else if point > 0 && point < length {
        let cut = usize::try_from(point).expect("less than the number of digits");
        format!("{sign}{}.{}", &digits[..cut], &digits[cut..])
    } else if point <= 0 && -point <= MAX_FRACTION_ZEROS {
        format!("{sign}0.{}{digits}", zeros(-point))
    } else {
        format!("{sign}{}e{}", scientific(digits), point - 1)
    }
}

fn scientific(digits: &str) -> String {
    match digits.split_at(1) {
        (first, "") => first.to_owned(),
        (first, rest) => format!("{first}.{rest}"),
    }
}

/// `exponent` plus `delta`, for an exponent of more digits than any integer type has. `delta` is far smaller, so
/// the sign stays.
fn add(exponent: &str, delta: i128) -> String {
    let negative = exponent.starts_with('-');
    let digits = exponent.trim_start_matches(['-', '+']).trim_start_matches('0');
    let mut carry = if negative { -delta } else { delta };
    let mut out: Vec<u8> = digits.bytes().collect();
    for digit in out.iter_mut().rev() {
        if carry == 0 {
            break;
        }
        let sum = i128::from(*digit - b'0') + carry;
        *digit = b'0' + u8::try_from(sum.rem_euclid(10)).expect("one digit");
        carry = sum.div_euclid(10);
    }
    let text = String::from_utf8(out).expect("digits");
    let text = if carry > 0 { format!("{carry}{text}") } else { text.trim_start_matches('0').to_owned() };
    format!("{}{text}", if negative { "-" } else { "" })
}

/// What tells whether a task is asked for the same thing again: SHA-256, in lower-case hex, over the op's name
/// and its canonical input. Needs, attempt, epoch and time are not in it.
#[must_use]
pub fn input_hash(op: &str, canonical_input: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"leasehold/input/1\n");
    // The length keeps an op's name and an input apart whatever they hold.
    hash.update(format!("{}\n", op.len()).as_bytes());
    hash.update(op.as_bytes());
    hash.update(canonical_input.as_bytes());
    hex(&hash.finalize())
}

/// Lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RP-11
    #[test]
    fn a_number_has_one_form_however_it_is_written_and_another_value_has_another() {
        for (same, form) in [
            (&["100", "1E+2", "1e2", "100.0", "10e1", "0.1e3", "1000e-1"][..], "100"),
            (&["10", "10.00", "1e1", "100E-1"], "10"),
            (&["0", "-0", "0.000", "0e99999999999999999999999999999999999999999999", "-0.0E-7"], "0"),
            (
                &["9223372036854775808", "9223372036854775808.0", "9.223372036854775808E18"],
                "9223372036854775808",
            ),
            (
                &["123456789012345678901234567890", "1.2345678901234567890123456789e29"],
                "123456789012345678901234567890",
            ),
            (&["-1.5", "-15e-1", "-1.50"], "-1.5"),
            (&["0.000001", "1e-6"], "0.000001"),
            (&["0.00000001", "1e-8", "0.1E-7"], "1e-8"),
            (&["1e400", "0.1e401", "10e399"], "1e400"),
            (&["12.5e400", "1.25E+401"], "1.25e401"),
            (&["1e-400", "100e-402"], "1e-400"),
            // 10^40 is more than any integer type holds: exact, and never written out.
            (
                &[
                    "1e10000000000000000000000000000000000000000",
                    "10E+9999999999999999999999999999999999999999",
                    "0.01e10000000000000000000000000000000000000002",
                ],
                "1e10000000000000000000000000000000000000000",
            ),
            (
                &[
                    "1e-10000000000000000000000000000000000000000",
                    "0.1e-9999999999999999999999999999999999999999",
                ],
                "1e-10000000000000000000000000000000000000000",
            ),
        ] {
            for written in same {
                assert_eq!(number(written), form, "{written}");
            }
        }
        for (one, other) in [
            ("9223372036854775807", "9223372036854775808"),
            ("123456789012345678901234567890", "123456789012345678901234567891"),
            ("0.1", "0.1000000000000000055511151231257827"),
            ("1e400", "1e401"),
            ("1", "-1"),
            ("1e-8", "1e8"),
        ] {
            assert_ne!(number(one), number(other), "{one}");
        }
    }

    /// RP-11
    #[test]
    fn inputs_are_the_same_by_value_and_only_then() {
        let hash = |text: &str| input_hash("http", &canonical(text).expect(text));
        let one = hash(r#"{"b":[1E+2,10.00],"a":9223372036854775808}"#);
        assert_eq!(one, hash("{ \"a\": 9223372036854775808.0, \"b\": [100, 10] }"));
        assert_ne!(one, hash(r#"{"b":[100,10],"a":9223372036854775807}"#));
        assert_ne!(one, hash(r#"{"b":[10,100],"a":9223372036854775808}"#));
        assert_ne!(hash("1"), hash("\"1\""));
        assert_ne!(input_hash("a", "1"), input_hash("a1", ""));
        assert_eq!(one.len(), 64);
        // A changed hash would make every job in flight look changed.
        assert_eq!(
            input_hash("sleep", r#"{"for":"1s"}"#),
            "d52fe6c7df1bfbc4ce0426bc3e4f6f2fc30118435783a9a39a01399666cde0da"
        );
    }

    #[test]
    fn keys_are_in_the_order_of_their_bytes_and_strings_have_the_fewest_escapes() {
        assert_eq!(
            canonical("{\"é\": 1, \"z\": \"\\u0041\\/\\u007f\\u001f\", \"Z\": null}").expect("JSON"),
            "{\"Z\":null,\"z\":\"A/\u{7f}\\u001f\",\"é\":1}"
        );
    }

    proptest! {
        #[test]
        fn the_form_of_a_form_is_itself(text in r"-?(0|[1-9][0-9]{0,12})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?") {
            let form = number(&text);
            prop_assert_eq!(number(&form), form.clone());
            // Where a double can tell, both are the same value.
            let (one, other) = (text.parse::<f64>().unwrap(), form.parse::<f64>().unwrap());
            prop_assert!(one == other, "{} {}", text, form);
        }
    }
}
