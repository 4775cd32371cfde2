//! One text to one checked value, by the kind of its setting. Nothing is rounded, capped or guessed.

use std::{path::PathBuf, time::Duration};

use leasehold_actors::domain::execution::{Allocation, Fact};

use super::table::{Kind, Setting};

/// A checked value.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Of a [`Kind::Duration`].
    Duration(Duration),
    /// Of a [`Kind::Count`].
    Count(u32),
    /// Of a choice, name, text, address or fact.
    Text(String),
    /// Of a [`Kind::List`].
    List(Vec<String>),
    /// Of a [`Kind::File`].
    File(PathBuf),
}

/// Checks a text; the error says why it is refused, without the value (which may be secret).
pub(super) fn parse(setting: &Setting, text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Err("is empty; give a value or leave the setting out".to_owned());
    }
    if let Some(c) = text.chars().find(|c| c.is_control()) {
        return Err(format!("holds the control character U+{:04X}", u32::from(c)));
    }
    match setting.kind {
        Kind::Duration(min, max) => duration(text, min, max).map(Value::Duration),
        Kind::Count(min, max) => count(text, min, max).map(Value::Count),
        Kind::Choice(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
        Kind::Choice(_) => Err("is none of the known words".to_owned()),
        Kind::Name if text.len() > 200 => Err(format!("is {} bytes long", text.len())),
        Kind::Name if text.trim() != text => Err("begins or ends with white space".to_owned()),
        Kind::Name | Kind::Text => Ok(Value::Text(text.to_owned())),
        Kind::List => list(text).map(Value::List),
        Kind::File => file(text).map(Value::File),
        Kind::Fact(of) => fact(of, text).map(|()| Value::Text(text.to_owned())),
        Kind::DatabaseUrl => super::database_url::check(text).map(|()| Value::Text(text.to_owned())),
    }
}

fn duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let value = humantime::parse_duration(text.trim()).map_err(|e| format!("is no duration ({e})"))?;
    if value < min {
        return Err("is too short".to_owned());
    }
    if value > max {
        return Err("is too long".to_owned());
    }
    // The database counts in milliseconds; a finer value would be cut without a word.
    if value.subsec_nanos() % 1_000_000 != 0 {
        return Err("is finer than a millisecond".to_owned());
    }
    Ok(value)
}

fn count(text: &str, min: u32, max: u32) -> Result<u32, String> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err("is no whole number".to_owned());
    }
    match text.parse::<u32>() {
        Ok(n) if n < min => Err("is too small".to_owned()),
        Ok(n) if n <= max => Ok(n),
        _ => Err("is too large".to_owned()),
    }
}

fn list(text: &str) -> Result<Vec<String>, String> {
    let items: Vec<String> = text.split(',').map(|item| item.trim().to_owned()).collect();
    if items.iter().any(String::is_empty) {
        return Err("has an empty item".to_owned());
    }
    Ok(items)
}

/// The rule that a fact breaks, without the text before it, which is quoted anyway.
fn fact(fact: Fact, text: &str) -> Result<(), String> {
    Allocation::default().set(fact, text).map_err(|refused| {
        let rule = refused.reason.strip_prefix(&format!("{text:?}")).unwrap_or(&refused.reason);
        rule.trim_start_matches([':', ' ']).to_owned()
    })
}

fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match std::fs::File::open(&path).and_then(|f| f.metadata()) {
        Ok(meta) if meta.is_file() => Ok(path),
        Ok(_) => Err("is not a file".to_owned()),
        Err(e) => Err(format!("cannot be read ({e})")),
    }
}

/// A time span as the settings are written: `10s`, `1m 30s`, `250ms`.
pub(super) fn show(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}
