//! JSON as a tree that loses nothing: numbers stay the text that they were written as, objects are walked in
//! the order of their keys' bytes.

use std::{collections::BTreeMap, fmt};

use super::limits::MAX_VALUE_DEPTH;

/// One JSON value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number as it was written: compare with [`super::canonical::number`].
    Number(String),
    /// Text.
    String(String),
    /// A list.
    Array(Vec<Json>),
    /// Members, by key.
    Object(BTreeMap<String, Json>),
}

/// Text that is not one JSON value, or one nested too deep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (byte {at})")]
pub struct NotJson {
    /// The byte at which the rule is broken.
    pub at: usize,
    /// What is wrong.
    pub reason: String,
}

impl Json {
    /// Reads one value.
    ///
    /// # Errors
    /// [`NotJson`] for anything else, for nesting over [`MAX_VALUE_DEPTH`], for a key that comes twice.
    pub fn parse(text: &str) -> Result<Self, NotJson> {
        let mut reader = Reader { text, bytes: text.as_bytes(), at: 0 };
        let value = reader.value(0)?;
        reader.space();
        if reader.at != text.len() { Err(reader.refuse("is not JSON")) } else { Ok(value) }
    }

    /// A number.
    #[must_use]
    pub fn number(value: impl Into<i128>) -> Self {
        Self::Number(value.into().to_string())
    }

    /// What kind of value it is, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// Appends the value without white space, numbers as they were written.
    pub fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(text) => out.push_str(text),
            Self::String(text) => quote(text, out),
            Self::Array(elements) => {
                out.push('[');
                for (n, element) in elements.iter().enumerate() {
                    if n > 0 {
                        out.push(',');
                    }
                    element.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (n, (key, value)) in members.iter().enumerate() {
                    if n > 0 {
                        out.push(',');
                    }
                    quote(key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}

/// Appends `text` as a JSON string with the fewest escapes.
pub(super) fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The raw text of what lies below `text` at `key`, byte for byte; `None` when it is no object or has no such
/// key. `text` must be JSON that was checked.
pub(super) fn raw_member<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut reader = Reader { text, bytes: text.as_bytes(), at: 0 };
    reader.space();
    if !reader.take(b'{') {
        return None;
    }
    reader.space();
    while reader.peek() == Some(b'"') {
        let found = reader.string().ok()?;
        reader.space();
        reader.take(b':');
        let value = reader.skip().ok()?;
        if found == key {
            return Some(value);
        }
        reader.space();
        reader.take(b',');
        reader.space();
    }
    None
}

/// The raw text of the element at `index`, byte for byte; `None` when it is no list or shorter. `text` must be
/// JSON that was checked.
pub(super) fn raw_element(text: &str, index: u64) -> Option<&str> {
    let mut reader = Reader { text, bytes: text.as_bytes(), at: 0 };
    reader.space();
    if !reader.take(b'[') {
        return None;
    }
    reader.space();
    let mut at = 0;
    while reader.peek()? != b']' {
        let value = reader.skip().ok()?;
        if at == index {
            return Some(value);
        }
        at += 1;
        reader.space();
        reader.take(b',');
        reader.space();
    }
    None
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn refuse(&self, reason: impl Into<String>) -> NotJson {
        NotJson { at: self.at, reason: reason.into() }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// The nesting bounds the recursion.
    fn value(&mut self, depth: usize) -> Result<Json, NotJson> {
        self.space();
        match self.peek() {
            Some(b'{' | b'[') if depth == MAX_VALUE_DEPTH => {
                Err(self.refuse(format!("is nested more than {MAX_VALUE_DEPTH} deep")))
            }
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => Ok(Json::Number(self.number()?.to_owned())),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, NotJson> {
        self.at += 1;
        let mut members = BTreeMap::new();
        self.space();
        if self.take(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.space();
            let begin = self.at;
            let key = self.string()?;
            self.space();
            if !self.take(b':') {
                return Err(self.refuse("is not JSON"));
            }
            let value = self.value(depth + 1)?;
            if members.contains_key(&key) {
                return Err(NotJson { at: begin, reason: format!("has the key {key:?} more than once") });
            }
            members.insert(key, value);
            self.space();
            if self.take(b'}') {
                return Ok(Json::Object(members));
            }
            if !self.take(b',') {
                return Err(self.refuse("is not JSON"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, NotJson> {
        self.at += 1;
        let mut elements = Vec::new();
        self.space();
        if self.take(b']') {
            return Ok(Json::Array(elements));
        }
        loop {
            elements.push(self.value(depth + 1)?);
            self.space();
            if self.take(b']') {
                return Ok(Json::Array(elements));
            }
            if !self.take(b',') {
                return Err(self.refuse("is not JSON"));
            }
        }
    }

    fn word(&mut self) -> Result<Json, NotJson> {
        for (word, value) in [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
        {
            if self.bytes[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.refuse("is not JSON"))
    }

    fn number(&mut self) -> Result<&'a str, NotJson> {
        let length = number_length(&self.text[self.at..]);
        if length == 0 {
            return Err(self.refuse("is not JSON"));
        }
        let begin = self.at;
        self.at += length;
        Ok(&self.text[begin..self.at])
    }

    fn string_token(&mut self) -> Result<&'a str, NotJson> {
        let begin = self.at;
        if !self.take(b'"') {
            return Err(self.refuse("is not JSON"));
        }
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
                None => return Err(NotJson { at: begin, reason: "is not JSON".to_owned() }),
            }
        }
        self.at += 1;
        // Both ends are ASCII, so this is a slice between characters.
        Ok(&self.text[begin..self.at])
    }

    fn string(&mut self) -> Result<String, NotJson> {
        let begin = self.at;
        let token = self.string_token()?;
        serde_json::from_str(token)
            .map_err(|_| NotJson { at: begin, reason: "is not JSON: a string has a bad escape".to_owned() })
    }

    /// The raw text of the next value; nothing is built, and nesting costs no stack.
    fn skip(&mut self) -> Result<&'a str, NotJson> {
        self.space();
        let begin = self.at;
        let mut open = 0_usize;
        loop {
            self.space();
            match self.peek() {
                Some(b'{' | b'[') => {
                    open += 1;
                    self.at += 1;
                    continue;
                }
                Some(b'}' | b']') if open > 0 => {
                    open -= 1;
                    self.at += 1;
                }
                Some(b',' | b':') if open > 0 => {
                    self.at += 1;
                    continue;
                }
                Some(b'"') => {
                    self.string_token()?;
                }
                Some(b'-' | b'0'..=b'9') => {
                    self.number()?;
                }
                _ => {
                    self.word()?;
                }
            }
            if open == 0 {
                return Ok(&self.text[begin..self.at]);
            }
        }
    }
}

/// How many bytes at the beginning of `text` are one JSON number; 0 when none is.
pub(super) fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut at = usize::from(bytes.first() == Some(&b'-'));
    let whole = digits(at.min(bytes.len()));
    if whole == 0 {
        return 0;
    }
    at += if bytes[at] == b'0' { 1 } else { whole };
    if bytes.get(at) == Some(&b'.') {
        let fraction = digits(at + 1);
        if fraction == 0 {
            return 0;
        }
        at += 1 + fraction;
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        let exponent = if at + 1 + sign <= bytes.len() { digits(at + 1 + sign) } else { 0 };
        if exponent == 0 {
            return 0;
        }
        at += 1 + sign + exponent;
    }
    at
}

/// Whether the whole of `text` is one JSON number.
pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && number_length(text) == text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_read_is_written_with_its_numbers_as_they_were() {
        for (text, written) in [
            (" null ", "null"),
            (
                r#"{"b":1E+2,"a":[ -0.10, 123456789012345678901234567890 ]}"#,
                r#"{"a":[-0.10,123456789012345678901234567890],"b":1E+2}"#,
            ),
            (r#""é\u00e9\n\u0001\ud83d\ude00""#, "\"éé\\n\\u0001😀\""),
            ("[[],{}]", "[[],{}]"),
        ] {
            assert_eq!(Json::parse(text).expect(text).to_string(), written);
        }
    }

    #[test]
    fn nesting_ends_at_its_limit_and_never_on_the_stack() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        Json::parse(&nested(MAX_VALUE_DEPTH)).expect("as deep as allowed");
        assert!(Json::parse(&nested(MAX_VALUE_DEPTH + 1)).expect_err("too deep").reason.contains("nested"));
        assert!(Json::parse(&"[".repeat(100_000)).expect_err("too deep").reason.contains("nested"));
    }

    #[test]
    fn raw_text_below_a_key_or_index_is_cut_out_byte_for_byte() {
        let text = r#" { "a" : [ 1.50 , {"b]":"}"} , 2 ] , "\u0062": 1E+2, "c": "x\"y" }"#;
        assert_eq!(raw_member(text, "b"), Some("1E+2"));
        assert_eq!(raw_member(text, "c"), Some(r#""x\"y""#));
        assert_eq!(raw_member(text, "d"), None);
        let list = raw_member(text, "a").expect("there");
        assert_eq!(list, r#"[ 1.50 , {"b]":"}"} , 2 ]"#);
        assert_eq!((raw_element(list, 0), raw_element(list, 2)), (Some("1.50"), Some("2")));
        assert_eq!(raw_element(list, 1), Some(r#"{"b]":"}"}"#));
        assert_eq!((raw_element(list, 3), raw_element("[]", 0), raw_element("{}", 0)), (None, None, None));
        assert_eq!((raw_member("[]", "a"), raw_member("{}", "a")), (None, None));
    }

    proptest! {
        #[test]
        fn the_reader_accepts_what_serde_accepts(text in r#"[\[\]{}",:0-9a-e\\.+ntrufls -]{0,24}"#) {
            let theirs = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text);
            match Json::parse(&text) {
                Ok(_) => prop_assert!(theirs.is_ok(), "{text}"),
                Err(refused) if refused.reason.contains("not JSON") => prop_assert!(theirs.is_err(), "{text}"),
                Err(_) => {}
            }
        }
    }
}
