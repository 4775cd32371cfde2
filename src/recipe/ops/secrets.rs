//! Secrets of a worker: `${{ secrets.NAME }}` in an op's input stands for what the worker was given under that name.
//! What leaves an op, its output, its error, is masked first: nothing stored shows a value.
//!
//! Masked is the value itself, each line of 8 bytes or more of a value of several lines, and either as part of a JSON
//! string. What an op *derives* from a value (a hash, base64) is not known here and is not masked.

use std::{borrow::Cow, collections::BTreeMap, fmt, ops::Range, path::Path, sync::Arc};

use leasehold_actors::runtime_node_actor::task::Redact;

/// What stands in the place of a value.
const MASK: &str = "***";
/// A shorter value would be found everywhere, and could be guessed from what is masked.
pub(in crate::recipe) const SHORTEST_VALUE: usize = 4;
/// The longest value, in bytes.
const LONGEST: u64 = 64 * 1024;
/// Lines of a value that are as short as this are no secret by themselves.
const SHORTEST_LINE: usize = 8;

/// A secret that cannot be used. Never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("EXECUTION_WORKER_SECRETS: {item}: {reason}")]
pub struct SecretError {
    /// The item as it was written: a name, and perhaps a file.
    pub item: String,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

/// The secrets of one worker, by name.
#[derive(Clone, Default)]
pub struct Secrets {
    by_name: BTreeMap<String, String>,
    /// What is masked, longest first.
    patterns: Vec<String>,
    /// Variables of the worker's environment that hold values.
    variables: Vec<String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

impl Secrets {
    /// Reads `NAME=FILE` items, and `NAME` items from the environment.
    ///
    /// # Errors
    /// [`SecretError`] for the first that cannot be used.
    pub fn load(items: &[String]) -> Result<Self, SecretError> {
        let mut by_name = BTreeMap::new();
        let mut variables = Vec::new();
        for item in items {
            let refuse = |reason: String| SecretError { item: item.clone(), reason };
            let (name, file) = match item.split_once('=') {
                Some((name, file)) => (name, Some(Path::new(file))),
                None => (item.as_str(), None),
            };
            if !is_name(name) {
                return Err(refuse(
                    "a name has letters, digits and underscores, and no digit first; write NAME=FILE"
                        .to_owned(),
                ));
            }
            let value = match file {
                Some(file) => read(file).map_err(refuse)?,
                None => {
                    variables.push(name.to_owned());
                    std::env::var(name).map_err(|_| {
                        refuse("is no variable here, or no text; set it, or write NAME=FILE".to_owned())
                    })?
                }
            };
            if by_name.contains_key(name) {
                return Err(refuse("is given twice".to_owned()));
            }
            if value.len() < SHORTEST_VALUE || value.contains('\0') {
                return Err(refuse(format!(
                    "its value must have at least {SHORTEST_VALUE} bytes, and no NUL"
                )));
            }
            by_name.insert(name.to_owned(), value);
        }
        Ok(Self { variables, ..Self::of(by_name) })
    }

    /// These, for tests of ops and recipes.
    #[must_use]
    pub fn of(by_name: BTreeMap<String, String>) -> Self {
        let lines = by_name.values().flat_map(|value| value.lines().map(str::trim));
        let lines = lines.filter(|line| line.len() >= SHORTEST_LINE).map(str::to_owned);
        let mut patterns: Vec<String> = lines.chain(by_name.values().cloned()).collect();
        patterns.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        patterns.dedup();
        Self { by_name, patterns, variables: Vec::new() }
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.by_name.get(name).map(String::as_str)
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The variables of the environment that hold values: no program that is started inherits them.
    pub(crate) fn variables(&self) -> &[String] {
        &self.variables
    }

    /// A text with every value masked; where values overlap, all that they cover.
    #[must_use]
    pub fn mask<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let covered = covered(&self.patterns, text.as_bytes());
        if covered.is_empty() {
            return Cow::Borrowed(text);
        }
        let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
        for span in covered {
            shown.push_str(&text[from..span.start]);
            shown.push_str(MASK);
            from = span.end;
        }
        shown.push_str(&text[from..]);
        Cow::Owned(shown)
    }

    /// Blots values out of a program's output, which comes in pieces, without changing its length. None without secrets.
    pub(crate) fn redact(&self) -> Option<Redact> {
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        for pattern in &self.patterns {
            patterns.push(pattern.as_bytes().to_vec());
            let quoted = serde_json::Value::from(pattern.as_str()).to_string();
            let escaped = &quoted[1..quoted.len() - 1];
            if escaped != pattern {
                patterns.push(escaped.as_bytes().to_vec());
            }
        }
        patterns.sort_by_key(|pattern| std::cmp::Reverse(pattern.len()));
        if patterns.is_empty() {
            return None;
        }
        Some(Arc::new(move |data: &mut [u8], begun, last| blot(&patterns, data, begun, last)))
    }

    /// JSON text with every value masked that stands in a string or is a number; all other bytes stay as they are.
    #[must_use]
    pub fn mask_json<'t>(&self, json: &'t str) -> Cow<'t, str> {
        if self.patterns.is_empty() {
            return Cow::Borrowed(json);
        }
        let mut out = String::with_capacity(json.len());
        let mut changed = false;
        let mut rest = json;
        while !rest.is_empty() {
            let length = token(rest);
            let (text, behind) = rest.split_at(length);
            rest = behind;
            // Half a surrogate pair has no text: such a string is no secret of ours.
            let meant = match text.as_bytes()[0] {
                b'"' => serde_json::from_str::<String>(text).ok(),
                b'-' | b'0'..=b'9' => Some(text.to_owned()),
                _ => None,
            };
            match meant.as_deref().map(|meant| self.mask(meant)) {
                Some(Cow::Owned(masked)) => {
                    changed = true;
                    out.push_str(&serde_json::Value::String(masked).to_string());
                }
                _ => out.push_str(text),
            }
        }
        if changed { Cow::Owned(out) } else { Cow::Borrowed(json) }
    }
}

/// What values cover, in order. Those that overlap are one.
fn covered<P: AsRef<[u8]>>(patterns: &[P], data: &[u8]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for pattern in patterns.iter().map(AsRef::as_ref) {
        let begins = |at: &usize| data[*at] == pattern[0] && data[*at..].starts_with(pattern);
        let last = (data.len() + 1).saturating_sub(pattern.len());
        found.extend((0..last).filter(begins).map(|at| at..at + pattern.len()));
    }
    found.sort_by_key(|span| span.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for span in found {
        match merged.last_mut() {
            Some(before) if span.start < before.end => before.end = before.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

/// Puts stars over every value in what can be shown: all but the longest end that may be the beginning of one, which is
/// judged by what was printed, since stars begin nothing.
fn blot(patterns: &[Vec<u8>], data: &mut [u8], begun: usize, last: bool) -> (usize, usize) {
    let mut unfinished = 0;
    for pattern in patterns.iter().filter(|_| !last) {
        let longest = (pattern.len() - 1).min(data.len());
        let begins = (unfinished + 1..=longest).rev().find(|length| data.ends_with(&pattern[..*length]));
        unfinished = begins.unwrap_or(unfinished);
    }
    let shown = data.len() - unfinished;
    let before = 0..begun.min(data.len());
    // Each by itself, since only what begins in the shown part reaches out of it.
    let spans = patterns.iter().flat_map(|pattern| covered(std::slice::from_ref(pattern), data));
    let mut reaches = shown.max(before.end);
    let spans: Vec<Range<usize>> = spans.chain([before]).filter(|span| span.start < shown).collect();
    for span in spans {
        reaches = reaches.max(span.end);
        let end = span.end.min(shown);
        data[span.start..end].fill(b'*');
    }
    (shown, reaches - shown)
}

/// How many bytes the first token of JSON text has: a string, a number, or a run of anything else.
fn token(text: &str) -> usize {
    let bytes = text.as_bytes();
    let begins = |byte: u8| byte == b'"' || byte == b'-' || byte.is_ascii_digit();
    if bytes[0] == b'"' {
        let mut at = 1;
        while at < bytes.len() {
            match bytes[at] {
                b'\\' => at += 2,
                b'"' => return at + 1,
                _ => at += 1,
            }
        }
        return bytes.len();
    }
    let is_number = begins(bytes[0]);
    let goes_on = |byte: u8| {
        if is_number {
            byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E')
        } else {
            !begins(byte)
        }
    };
    bytes.iter().skip(1).position(|byte| !goes_on(*byte)).map_or(bytes.len(), |at| at + 1)
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && name.len() <= 100
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The text of a file, without the line break at its end.
fn read(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot be read ({error}); name a readable file");
    let about = std::fs::metadata(path).map_err(cannot)?;
    if !about.is_file() || about.len() > LONGEST {
        return Err(format!("is no file of at most {LONGEST} bytes"));
    }
    let bytes = std::fs::read(path).map_err(cannot)?;
    let mut text = String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[(&str, &str)]) -> Secrets {
        Secrets::of(values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn values_are_masked_in_text_and_in_json_and_nothing_else_changes() {
        let key = "-----BEGIN KEY-----\nabcdefghijkl\nxyz\n";
        let secrets =
            secrets(&[("T", "to\"k\\en"), ("LONG", "to\"k\\en-and-more"), ("PIN", "48151623"), ("KEY", key)]);
        assert_eq!(secrets.mask("a to\"k\\en-and-more b to\"k\\en"), "a *** b ***");
        assert_eq!(secrets.mask("line abcdefghijkl"), "line ***");
        assert_eq!(secrets.mask("xyz stays"), "xyz stays");
        let json = r#"{"a": "x to\"k\\en", "to\u0022k\\en": [1.50, 48151623,true], "b":"\u00e9"}"#;
        assert_eq!(secrets.mask_json(json), r#"{"a": "x ***", "***": [1.50, "***",true], "b":"\u00e9"}"#);
        let clean = r#"[1e400, "\ud800", -0.0, null]"#;
        assert!(matches!(secrets.mask_json(clean), Cow::Borrowed(_)));
        assert!(!format!("{secrets:?}").contains("48151623"));
        for broken in ["\"abc", "\"abc\\", "{", "\"é"] {
            assert_eq!(secrets.mask_json(broken), broken);
        }
    }

    /// However the output is cut into pieces, what is let go is the same as if it came at once: also where one value is
    /// the beginning of another one, a line of it, or overlaps it.
    #[test]
    fn values_are_blotted_out_of_output_that_comes_in_pieces() {
        let key = "line-one-aaaa\npin12\nline-three-bbb\n";
        let values = [
            ("A", "hunter2-hunter2"),
            ("B", "pass\"word"),
            ("USER", "admin"),
            ("LOGIN", "admin:hunter22xx"),
            ("SIGN", "xxadmi"),
            ("MIN", "minister"),
            ("KEY", key),
        ];
        let secrets = secrets(&values);
        let redact = secrets.redact().expect("there are secrets");
        for (text, blotted) in [
            ("a hunter2-hunter2 b {\"k\":\"pass\\\"word\"} pass\"word hunter2-hunt", None),
            ("admin:hunter22xx", Some("****************")),
            ("admin:hunter22", Some("*****:hunter22")),
            ("admin", Some("*****")),
            ("say xxadmin:hunter22xxadmin", Some("say ***********************")),
            ("administer", Some("**********")),
            ("administ", Some("*****ist")),
            ("line-one-aaaa\npin12\nline-three-bbb\n.", Some("***********************************.")),
            ("line-one-aaaa\npin12\nline-", Some("*************\npin12\nline-")),
            ("xxxxxxadmi", Some("xxxx******")),
        ] {
            let blotted =
                blotted.unwrap_or("a *************** b {\"k\":\"**********\"} ********* hunter2-hunt");
            for size in 1..=text.len() {
                let (mut held, mut shown, mut begun) = (Vec::new(), Vec::new(), 0);
                let pieces = text.len().div_ceil(size);
                for (n, piece) in text.as_bytes().chunks(size).enumerate() {
                    held.extend_from_slice(piece);
                    let safe;
                    (safe, begun) = redact(&mut held, begun, n + 1 == pieces);
                    shown.extend(held.drain(..safe));
                    assert!(
                        blotted.as_bytes().starts_with(&shown),
                        "{size}: {}",
                        String::from_utf8_lossy(&shown)
                    );
                }
                assert_eq!(String::from_utf8(shown).unwrap(), blotted, "{size}");
            }
        }
        assert_eq!(secrets.mask("say xxadmin:hunter22xxadmin administer"), "say *** ***");
        assert!(Secrets::default().redact().is_none());
    }

    #[test]
    fn secrets_come_from_files_and_from_the_environment() {
        let folder = std::env::temp_dir().join(format!("lh-secrets-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, content).unwrap();
            path.display().to_string()
        };
        let (good, short, binary) =
            (file("good", b"hunter22\n"), file("short", b"abc\n"), file("binary", b"\xff\xfe\xfd\xfc"));
        let load = |items: &[String]| Secrets::load(items);
        let loaded = load(&[format!("TOKEN={good}"), "PATH".to_owned()]).unwrap();
        assert_eq!((loaded.get("TOKEN"), loaded.get("NO")), (Some("hunter22"), None));
        assert_eq!(loaded.get("PATH").map(str::to_owned), std::env::var("PATH").ok());
        assert_eq!(loaded.variables(), ["PATH"]);
        for (items, says) in [
            (vec![format!("A={short}")], "at least 4 bytes"),
            (vec![format!("A={binary}")], "UTF-8"),
            (vec![format!("A={}", folder.display())], "no file"),
            (vec!["A=/no/such".to_owned()], "cannot be read"),
            (vec!["NO_SUCH_VARIABLE_HERE".to_owned()], "no variable"),
            (vec![format!("A={good}"), format!("A={good}")], "twice"),
            (vec![format!("1A={good}")], "letters"),
            (vec![format!("={good}")], "letters"),
        ] {
            let error = load(&items).unwrap_err().to_string();
            assert!(error.starts_with("EXECUTION_WORKER_SECRETS: ") && error.contains(says), "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
