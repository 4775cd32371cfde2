//! Checks a tree of values against the table, and tells every place where it does not fit.

use super::{Field, Kind, Shape, listed};
use crate::recipe::{
    limits::{LANGUAGE_VERSION, MAX_ATTEMPTS, MAX_ID, MAX_NODE_MILLIS},
    mistake::Place,
    template::has_template,
    yaml::{Value, Yaml},
};

/// Checks a value against a shape; `report` hears of every mistake.
pub(in crate::recipe) fn check(yaml: &Yaml, shape: &'static Shape, report: &mut dyn FnMut(Place, String)) {
    if !matches!(yaml.value, Value::Map(_)) {
        report(yaml.place, format!("{} is a map, not {}", shape.one(), yaml.kind()));
        return;
    }
    let mut unknown = Unknown::of(shape);
    for (key, value) in yaml.members() {
        if let Some(field) = shape.fields().find(|field| field.key == key.name) {
            kind(value, field, report);
        } else {
            report(key.place, unknown.told(&key.name));
        }
    }
    missing(yaml, shape, report);
}

/// Keys that a shape must have.
pub(super) fn missing(yaml: &Yaml, shape: &Shape, report: &mut dyn FnMut(Place, String)) {
    for field in shape.fields().filter(|field| field.required && yaml.get(field.key).is_none()) {
        report(yaml.place, format!("`{}` is missing from this {}", field.key, shape.name));
    }
    let chosen: Vec<&str> = shape.one_of.iter().copied().filter(|key| yaml.get(key).is_some()).collect();
    if !shape.one_of.is_empty() && chosen.len() != 1 {
        let found = if chosen.is_empty() { "none".to_owned() } else { listed(&chosen) };
        report(
            yaml.place,
            format!("{} has exactly one of {}, not {found}", shape.one(), listed(shape.one_of)),
        );
    }
}

/// Tells of the keys of one map that its shape does not have.
pub(super) struct Unknown {
    shape: &'static Shape,
    /// What there is was said, and need not be said again.
    listed: bool,
}

impl Unknown {
    pub(super) fn of(shape: &'static Shape) -> Self {
        Self { shape, listed: false }
    }

    pub(super) fn told(&mut self, key: &str) -> String {
        let shape = self.shape;
        if has_template(key) {
            return "a key cannot be a template".to_owned();
        }
        let near = shape
            .fields()
            .map(|field| (distance(key, field.key), field.key))
            .min()
            .filter(|(distance, near)| *distance <= near.len() / 3);
        match near {
            Some((_, near)) => format!("unknown key `{key}` in {}; is `{near}` meant?", shape.one()),
            None if std::mem::replace(&mut self.listed, true) => {
                format!("unknown key `{key}` in {}", shape.one())
            }
            None => {
                let keys: Vec<&str> = shape.fields().map(|field| field.key).collect();
                format!("unknown key `{key}` in {}; there are {}", shape.one(), listed(&keys))
            }
        }
    }
}

/// How many letters must change to make one word the other.
pub(in crate::recipe) fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (n, a) in one.chars().take(40).enumerate() {
        let mut corner = row[0];
        row[0] = n + 1;
        for (m, b) in other.iter().enumerate() {
            let changed = corner + usize::from(a != *b);
            corner = row[m + 1];
            row[m + 1] = changed.min(row[m] + 1).min(row[m + 1] + 1);
        }
    }
    row[other.len()]
}

pub(super) fn kind(yaml: &Yaml, field: &Field, report: &mut dyn FnMut(Place, String)) {
    let key = field.key;
    let mut refuse = |reason: String| report(yaml.place, format!("`{key}` {reason}"));
    match (field.kind, &yaml.value) {
        (Kind::Constant, _) => constant(yaml, report),
        (Kind::Value | Kind::Literal, _)
        | (Kind::Text, Value::Text(_))
        | (Kind::Condition, Value::Bool(_))
        | (Kind::Amount, Value::Text(_) | Value::Number(_))
        | (Kind::Reference, Value::Text(_))
        | (Kind::Inputs | Kind::Map, Value::Map(_)) => {}
        (Kind::Id, Value::Text(text)) => {
            if !is_id(text) {
                refuse(format!(
                    "must be 1 to {MAX_ID} letters, digits, `_` and `-`, and begin with a letter or `_`"
                ));
            }
        }
        (Kind::Name, Value::Text(text)) => {
            if let Err(reason) = name(text) {
                refuse(reason);
            }
        }
        (Kind::Path, Value::Text(text)) => {
            if has_template(text) {
                refuse("is resolved before anything runs: it cannot be a template".to_owned());
            }
        }
        (Kind::Version, Value::Number(text)) => {
            if *text != LANGUAGE_VERSION.to_string() {
                refuse(format!("{text} is not known here; this binary knows {LANGUAGE_VERSION}"));
            }
        }
        (Kind::Condition, Value::Text(text)) => {
            if !has_template(text) {
                refuse("must be true, false or one template: ${{ … }}".to_owned());
            }
        }
        (Kind::Duration, Value::Text(text)) => {
            if let Err(reason) = duration(text) {
                refuse(reason);
            }
        }
        (Kind::Attempts, Value::Number(text)) => {
            if !text.parse::<u32>().is_ok_and(|n| (1..=MAX_ATTEMPTS).contains(&n)) {
                refuse(format!("must be a whole number from 1 to {MAX_ATTEMPTS}"));
            }
        }
        (Kind::Names, Value::List(elements)) => {
            for element in elements {
                match element.text().map(name) {
                    Some(Ok(())) => {}
                    Some(Err(reason)) => report(element.place, reason),
                    None => report(element.place, format!("text is wanted here, not {}", element.kind())),
                }
            }
        }
        (Kind::Filled, Value::Text(text)) => {
            if text.is_empty() {
                refuse("must not be empty".to_owned());
            }
        }
        (Kind::Texts | Kind::Argv, Value::List(elements)) => {
            if matches!(field.kind, Kind::Argv)
                && elements.first().is_none_or(|program| program.text() == Some(""))
            {
                refuse("must name a program: [program, argument, …]".to_owned());
            }
            for element in elements.iter().filter(|element| element.text().is_none()) {
                report(element.place, format!("`{key}` holds texts, not {}: {AS_TEXT}", element.kind()));
            }
        }
        (Kind::TextMap, Value::Map(members)) => {
            for (name, value) in members.iter().filter(|(_, value)| value.text().is_none()) {
                report(
                    value.place,
                    format!("`{}` in `{key}` must be text, not {}: {AS_TEXT}", name.name, value.kind()),
                );
            }
        }
        (Kind::Span, Value::Text(text)) => {
            if let Err(reason) = span(text, false) {
                refuse(reason);
            }
        }
        (Kind::SpanOrSeconds, Value::Text(text)) => {
            if let Err(reason) = span(text, true) {
                refuse(reason);
            }
        }
        (Kind::SpanOrSeconds, Value::Number(text)) => {
            if !text.parse::<u64>().is_ok_and(|seconds| seconds <= LONGEST_SPAN.as_secs()) {
                refuse("must be a whole number of seconds, at most 366 days".to_owned());
            }
        }
        (Kind::Whole(least, most), Value::Number(text)) => {
            if !whole(text, least, most) {
                refuse(format!("must be a whole number from {least} to {most}"));
            }
        }
        (Kind::Wholes(least, most), Value::List(elements)) => {
            for element in elements {
                let fits = match &element.value {
                    Value::Number(text) => whole(text, least, most),
                    Value::Text(text) => has_template(text),
                    _ => false,
                };
                if !fits {
                    report(element.place, format!("`{key}` holds whole numbers from {least} to {most}"));
                }
            }
        }
        (Kind::Word(words), Value::Text(text)) => {
            if !words.contains(&text.as_str()) {
                refuse(format!("must be one of {}", listed(words)));
            }
        }
        (Kind::Constants, Value::Map(members)) => {
            for (key, value) in members {
                variable(&key.name, key.place, report);
                constant(value, report);
            }
        }
        (Kind::One(shape), Value::Map(_)) => check(yaml, shape, report),
        (Kind::Many(shape), Value::List(elements)) => {
            if elements.is_empty() {
                refuse(format!("must hold at least one {}", shape.name));
            }
            for element in elements {
                check(element, shape, report);
            }
        }
        (Kind::ByName(shape), Value::Map(members)) => {
            for (key, value) in members {
                variable(&key.name, key.place, report);
                // At the root, what is meant for its op is easily written where its own inputs are declared.
                if matches!(value.value, Value::Map(_)) {
                    check(value, shape, report);
                } else {
                    report(
                        value.place,
                        format!(
                            "`{}` must be {}, such as {{ type: string }}, not {}; at the root, what its op or \
                             included recipe takes stands in `with`",
                            key.name,
                            shape.one(),
                            value.kind()
                        ),
                    );
                }
            }
        }
        (wanted, _) => refuse(format!("must be {}, not {}", wanted.described(), yaml.kind())),
    }
}

/// How any value becomes text: written out, or as what a template comes to, which keeps its type.
const AS_TEXT: &str = "quote it, or give a template string(…), or text around it";

/// The longest that a `sleep` takes, or an op waits.
const LONGEST_SPAN: std::time::Duration = std::time::Duration::from_secs(366 * 86_400);

fn span(text: &str, zero: bool) -> Result<(), String> {
    let bad = || {
        let least = if zero { "" } else { " longer than zero" };
        Err(format!("must be a duration{least} such as 30s, 5m or 2h, at most 366 days"))
    };
    match humantime::parse_duration(text) {
        Ok(span) if span <= LONGEST_SPAN && (zero || !span.is_zero()) => Ok(()),
        _ => bad(),
    }
}

fn whole(text: &str, least: i64, most: i64) -> bool {
    text.parse().is_ok_and(|n: i64| (least..=most).contains(&n))
}

/// A constant cannot hold templates: nothing would evaluate them.
fn constant(yaml: &Yaml, report: &mut dyn FnMut(Place, String)) {
    match &yaml.value {
        Value::Text(text) if has_template(text) => {
            report(yaml.place, "a constant cannot hold a template".to_owned());
        }
        Value::List(elements) => elements.iter().for_each(|element| constant(element, report)),
        Value::Map(members) => members.iter().for_each(|(_, value)| constant(value, report)),
        _ => {}
    }
}

fn variable(name: &str, place: Place, report: &mut dyn FnMut(Place, String)) {
    let fits = name.len() <= MAX_ID
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !fits {
        report(
            place,
            format!(
                "the name {name:?} must be 1 to {MAX_ID} letters, digits and `_`, and begin with no digit"
            ),
        );
    }
}

/// Whether a text can be an id.
fn is_id(text: &str) -> bool {
    text.len() <= MAX_ID
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

fn name(text: &str) -> Result<(), String> {
    if has_template(text) {
        return Err("cannot be a template".to_owned());
    }
    if text.is_empty() || text.chars().count() > 200 || text.chars().any(char::is_control) {
        return Err("must be 1 to 200 characters without control characters".to_owned());
    }
    Ok(())
}

/// Whole milliseconds from `250ms`, `30s`, `10m`.
pub(in crate::recipe) fn duration(text: &str) -> Result<i64, String> {
    let parsed = humantime::parse_duration(text).map_err(|e| format!("{text:?} is not a duration: {e}"))?;
    if parsed.subsec_nanos() % 1_000_000 != 0 {
        return Err(format!("{text:?} is no whole number of milliseconds"));
    }
    i64::try_from(parsed.as_millis())
        .ok()
        .filter(|millis| (1..=MAX_NODE_MILLIS).contains(millis))
        .ok_or_else(|| format!("{text:?} must be from 1ms to 365days"))
}
