//! Foreign text on its way to a terminal. Whatever a job prints or is called, it must not steer the terminal of
//! the person who looks at it: control characters are shown as what they are (`\x1b`), not sent.

use std::borrow::Cow;

/// What a terminal may act on, or what makes text look different from what it says.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

fn push_visible(out: &mut String, c: char) {
    use std::fmt::Write as _;
    let code = u32::from(c);
    // Writing to a String cannot fail.
    let _ = if code < 0x100 { write!(out, "\\x{code:02x}") } else { write!(out, "\\u{{{code:x}}}") };
}

/// A name, message or value on one line: line breaks and tabs are made visible too.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_harmful(c) => push_visible(&mut out, c),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// JSON text as it may be sent to a terminal: serde escapes only the characters that JSON itself forbids.
#[must_use]
pub(super) fn json(text: String) -> String {
    if !text.chars().any(is_harmful) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 8);
    let mut units = [0; 2];
    for c in text.chars() {
        if is_harmful(c) {
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// A stream of output on its way to a terminal, piece by piece. Characters that are split over two pieces are
/// put together; bytes that are no UTF-8 are shown as `\xff`.
#[derive(Debug, Default)]
pub struct Neutralizer {
    pending: Vec<u8>,
    carriage_return: bool,
}

impl Neutralizer {
    /// The harmless form of the next piece.
    #[must_use]
    pub fn push(&mut self, piece: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.pending);
        bytes.extend_from_slice(piece);
        let mut out = String::with_capacity(bytes.len());
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.text(&mut out, text);
                    break;
                }
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    self.text(&mut out, std::str::from_utf8(good).unwrap_or_default());
                    let Some(length) = error.error_len() else {
                        // The beginning of a character whose end is in the next piece.
                        self.pending = bad.to_vec();
                        break;
                    };
                    self.flush_return(&mut out);
                    for byte in &bad[..length] {
                        out.push_str(&format!("\\x{byte:02x}"));
                    }
                    rest = &bad[length..];
                }
            }
        }
        out
    }

    /// What was held back at the end of the stream.
    #[must_use]
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.flush_return(&mut out);
        for byte in std::mem::take(&mut self.pending) {
            out.push_str(&format!("\\x{byte:02x}"));
        }
        out
    }

    fn text(&mut self, out: &mut String, text: &str) {
        for c in text.chars() {
            if c == '\n' {
                // A carriage return right before a line break is only a line break.
                self.carriage_return = false;
                out.push('\n');
                continue;
            }
            self.flush_return(out);
            match c {
                '\r' => self.carriage_return = true,
                '\t' => out.push('\t'),
                c if is_harmful(c) => push_visible(out, c),
                c => out.push(c),
            }
        }
    }

    fn flush_return(&mut self, out: &mut String) {
        if std::mem::take(&mut self.carriage_return) {
            out.push_str("\\r");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Title-set, clear-screen, clipboard (OSC 52), cursor-up, bell, C1 CSI, right-to-left override.
    const HOSTILE: &str =
        "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}]52;c;cm0=\u{7}\u{1b}[1A\u{8}\u{9b}31m\u{202e}\u{7f}";

    fn is_safe(text: &str) -> bool {
        text.chars().all(|c| c == '\n' || c == '\t' || !is_harmful(c))
    }

    /// AP-09
    #[test]
    fn control_sequences_are_shown_and_not_sent() {
        assert!(is_safe(&one_line(HOSTILE)), "{:?}", one_line(HOSTILE));
        assert!(one_line(HOSTILE).starts_with("\\x1b]0;owned\\x07"));
        assert_eq!(one_line("two\nlines\there"), "two\\nlines\\there");
        assert_eq!(one_line("grüße 日本語"), "grüße 日本語");
        let mut stream = Neutralizer::default();
        let shown = stream.push(HOSTILE.as_bytes()) + &stream.finish();
        assert!(is_safe(&shown), "{shown:?}");
    }

    /// AP-09
    #[test]
    fn json_keeps_its_meaning_and_loses_its_control_characters() {
        let value = serde_json::json!({ "name": HOSTILE });
        let text = json(value.to_string());
        assert!(is_safe(&text), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn characters_split_over_pieces_are_put_together() {
        let text = "a日é\u{1f600}b\r\nc";
        for cut in 0..=text.len() {
            let mut stream = Neutralizer::default();
            let (head, tail) = text.as_bytes().split_at(cut);
            let shown = stream.push(head) + &stream.push(tail) + &stream.finish();
            assert_eq!(shown, "a日é\u{1f600}b\nc", "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_text_is_shown_as_bytes() {
        let mut stream = Neutralizer::default();
        assert_eq!(stream.push(b"a\xff\x00b\xe6"), "a\\xff\\x00b");
        assert_eq!(stream.finish(), "\\xe6");
        assert_eq!(stream.push(b"50%\r") + &stream.push(b"60%\r\n"), "50%\\r60%\n");
    }
}
