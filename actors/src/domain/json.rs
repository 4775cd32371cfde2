//! Raw JSON text is checked without being rewritten: big integers, the order of keys and white space stay as
//! the submitter wrote them, and what passes here can be read by PostgreSQL, serde and everybody after.

use std::{collections::HashSet, ops::Range};

use super::definition::InvalidDefinition;

/// The most bytes of one JSON document: payload, definition, output.
pub const MAX_BYTES: usize = 1 << 20;
/// The most levels of nesting: `[]` is one.
pub const MAX_DEPTH: usize = 100;

/// Checks one document: size, grammar (RFC 8259), nesting, no key twice in one object, no NUL and no half of
/// a surrogate pair in any string.
///
/// # Errors
/// [`InvalidDefinition`] with `field` and, where there is one, the byte at which the rule is broken.
pub fn check(field: &str, text: &str) -> Result<(), InvalidDefinition> {
    scan(field, text, None).map(|_| ())
}

/// Checks one document as [`check`] does, and tells where its value stands, and where its members do if it is an
/// object.
///
/// # Errors
/// As [`check`].
pub fn outline(field: &str, text: &str) -> Result<Outline, InvalidDefinition> {
    scan(field, text, Some(Vec::new()))
}

/// Where things stand in a document that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// The whole value, without the white space around it.
    pub value: Range<usize>,
    /// The members of the outermost object, in the order in which they are written; none if it is no object.
    pub members: Option<Vec<Member>>,
}

impl Outline {
    /// Where the value of a key of the outermost object stands.
    #[must_use]
    pub fn member(&self, key: &str) -> Option<Range<usize>> {
        let member = self.members.iter().flatten().find(|member| member.key == key)?;
        Some(member.value.clone())
    }
}

/// One member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The key, its escapes undone.
    pub key: String,
    /// Where the value stands.
    pub value: Range<usize>,
}

fn scan(field: &str, text: &str, members: Option<Vec<Member>>) -> Result<Outline, InvalidDefinition> {
    if text.len() > MAX_BYTES {
        return Err(InvalidDefinition::new(
            field,
            format!("is {} bytes long; at most {MAX_BYTES} (1 MiB) are allowed", text.len()),
        ));
    }
    Scanner { text, bytes: text.as_bytes(), at: 0, members }
        .document()
        .map_err(|(at, reason)| InvalidDefinition::new(field, format!("{reason} (byte {at})")))
}

type Broken = (usize, String);

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// The outermost object's members so far, when somebody asked for them.
    members: Option<Vec<Member>>,
}

/// An object's keys so far, or an array.
enum Level {
    Object(HashSet<String>),
    Array,
}

impl Scanner<'_> {
    fn document(mut self) -> Result<Outline, Broken> {
        // A loop with its own stack: a deep document must not exhaust the thread's.
        let mut open: Vec<Level> = Vec::new();
        self.white_space();
        let begin = self.at;
        loop {
            self.white_space();
            if open.len() == 1 {
                self.member(|value, at| value.start = at);
            }
            let opened = match self.peek() {
                Some(b'{') => Some(Level::Object(HashSet::new())),
                Some(b'[') => Some(Level::Array),
                _ => None,
            };
            if let Some(level) = opened {
                if open.len() == MAX_DEPTH {
                    return Err((self.at, format!("is nested more than {MAX_DEPTH} deep")));
                }
                self.at += 1;
                open.push(level);
                self.white_space();
                if !self.close(&mut open) {
                    self.key(&mut open)?;
                    continue;
                }
            } else {
                self.scalar()?;
            }
            // A value has ended: close what closes, then either go on or be done.
            loop {
                let end = self.at;
                self.white_space();
                if open.is_empty() {
                    let members = self.members.take().filter(|_| self.bytes.get(begin) == Some(&b'{'));
                    let outline = Outline { value: begin..end, members };
                    return if self.at == self.bytes.len() { Ok(outline) } else { Err(self.not_json()) };
                }
                if open.len() == 1 {
                    self.member(|value, _| value.end = end);
                }
                if self.close(&mut open) {
                    continue;
                }
                if self.peek() != Some(b',') {
                    return Err(self.not_json());
                }
                self.at += 1;
                self.white_space();
                self.key(&mut open)?;
                break;
            }
        }
    }

    /// Sets an end of the value of the outermost object's latest member.
    fn member(&mut self, set: impl FnOnce(&mut Range<usize>, usize)) {
        if let Some(member) = self.members.as_mut().and_then(|members| members.last_mut()) {
            set(&mut member.value, self.at);
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn not_json(&self) -> Broken {
        (self.at, "is not JSON".to_owned())
    }

    fn white_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn close(&mut self, open: &mut Vec<Level>) -> bool {
        let closes = match open.last() {
            Some(Level::Object(_)) => b'}',
            Some(Level::Array) => b']',
            None => return false,
        };
        let closed = self.peek() == Some(closes);
        if closed {
            self.at += 1;
            open.pop();
        }
        closed
    }

    /// In an object: the key of the member that comes next, and its colon.
    fn key(&mut self, open: &mut [Level]) -> Result<(), Broken> {
        let outermost = open.len() == 1;
        let Some(Level::Object(keys)) = open.last_mut() else { return Ok(()) };
        let begin = self.at;
        let key = self.string()?;
        if keys.contains(&key) {
            return Err((begin, format!("has the key {key:?} more than once")));
        }
        if let Some(members) = self.members.as_mut().filter(|_| outermost) {
            members.push(Member { key: key.clone(), value: 0..0 });
        }
        keys.insert(key);
        self.white_space();
        if self.peek() != Some(b':') {
            return Err(self.not_json());
        }
        self.at += 1;
        Ok(())
    }

    fn scalar(&mut self) -> Result<(), Broken> {
        match self.peek() {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for word in ["null", "true", "false"] {
                    if self.bytes[self.at..].starts_with(word.as_bytes()) {
                        self.at += word.len();
                        return Ok(());
                    }
                }
                Err(self.not_json())
            }
        }
    }

    fn number(&mut self) -> Result<(), Broken> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Broken> {
        let begin = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == begin { Err(self.not_json()) } else { Ok(()) }
    }

    /// The string that begins here, with its escapes undone.
    fn string(&mut self) -> Result<String, Broken> {
        let begin = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.not_json());
        }
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
                None => return Err(self.not_json()),
            }
        }
        self.at += 1;
        // Both ends are ASCII, so this is a slice between characters.
        let token = &self.text[begin..self.at];
        let text: String = serde_json::from_str(token).map_err(|_| {
            let reason = if half_of_a_pair(token) {
                "must not contain half of a surrogate pair"
            } else {
                "is not JSON: a string has a bad escape or a control character"
            };
            (begin, reason.to_owned())
        })?;
        if text.contains('\0') {
            return Err((begin, r"must not contain NUL (\u0000)".to_owned()));
        }
        Ok(text)
    }
}

/// Whether the only thing wrong with a string may be a lone `\ud800` … `\udfff`.
fn half_of_a_pair(token: &str) -> bool {
    let lower = token.to_ascii_lowercase();
    ["\\ud8", "\\ud9", "\\uda", "\\udb", "\\udc", "\\udd", "\\ude", "\\udf"].iter().any(|p| lower.contains(p))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_every_reader_understands_passes() {
        for good in [
            "null",
            " [ ] ",
            r#"{"a":{"a":1},"b":[{"a":2}]}"#,
            r#"{"big":123456789012345678901234567890,"exp":1E+2,"tiny":-0.10,"huge":1e400}"#,
            r#""\ud83d\ude00 \\u0000 \\ud800 é""#,
            "\t{\"z\": 1, \"a\": 2}\r\n",
        ] {
            assert_eq!(check("payload", good), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_some_reader_would_trip_over_is_refused() {
        for (bad, reason) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("[1,]", "not JSON"),
            ("{\"a\":1,}", "not JSON"),
            ("{a:1}", "not JSON"),
            ("01", "not JSON"),
            ("1.", "not JSON"),
            ("NaN", "not JSON"),
            ("nulll", "not JSON"),
            ("[1] 2", "not JSON"),
            ("[1}", "not JSON"),
            ("\"a\nb\"", "control character"),
            (r#""\x""#, "bad escape"),
            ("\"\\", "not JSON"),
            (r#"["\u0000"]"#, "NUL"),
            ("\"\0\"", "control character"),
            (r#"{"a\u0000b":1}"#, "NUL"),
            (r#""\ud83d""#, "surrogate"),
            (r#""\ude00\ud83d""#, "surrogate"),
            (r#"{"a":1,"\u0061":2}"#, "more than once"),
            (r#"[{"b":{"x":1,"y":2,"x":3}}]"#, "more than once"),
        ] {
            let refused = check("payload", bad).expect_err(bad);
            assert!(refused.reason.contains(reason), "{bad}: {refused}");
        }
    }

    #[test]
    fn an_outline_tells_where_the_members_of_the_outermost_object_stand() {
        let text = r#" {"a" : {"b":[1, 2]} ,"\u0062":[ ],"":"x" , "d":{}}
"#;
        let outline = outline("payload", text).expect("JSON");
        assert_eq!(&text[outline.value.clone()], text.trim());
        let members: Vec<(&str, &str)> =
            outline.members.iter().flatten().map(|m| (m.key.as_str(), &text[m.value.clone()])).collect();
        assert_eq!(members, [("a", r#"{"b":[1, 2]}"#), ("b", "[ ]"), ("", r#""x""#), ("d", "{}")]);
        assert_eq!(outline.member("b").map(|place| &text[place]), Some("[ ]"));
        assert_eq!(
            super::outline("payload", " [{\"a\":1}] ").expect("JSON"),
            Outline { value: 1..10, members: None }
        );
        assert_eq!(super::outline("payload", "{}").expect("JSON").members, Some(vec![]));
    }

    /// AP-17
    #[test]
    fn size_and_nesting_end_at_their_limits() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert_eq!(check("payload", &nested(MAX_DEPTH)), Ok(()));
        for deep in [MAX_DEPTH + 1, 200, 100_000] {
            assert!(check("payload", &nested(deep)).expect_err("too deep").reason.contains("nested"));
        }
        let sized = |n: usize| format!("\"{}\"", "x".repeat(n - 2));
        assert_eq!(check("payload", &sized(MAX_BYTES - 1)), Ok(()));
        assert_eq!(check("payload", &sized(MAX_BYTES)), Ok(()));
        assert!(check("payload", &sized(MAX_BYTES + 1)).expect_err("too long").reason.contains("1 MiB"));
    }

    proptest! {
        /// The scanner and serde agree on what JSON is (serde has no rule about keys that come twice).
        #[test]
        fn the_scanner_accepts_no_more_and_no_less_than_serde(text in r#"[\[\]{}",:0-9a-e\\.+ntrufls -]{0,24}"#) {
            let ours = check("payload", &text);
            let theirs = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text);
            match ours {
                Ok(()) => prop_assert!(theirs.is_ok(), "{text}"),
                Err(refused) if refused.reason.contains("is not JSON") => prop_assert!(theirs.is_err() , "{text}"),
                Err(_) => {}
            }
        }
    }
}
