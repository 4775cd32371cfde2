//! YAML as a tree in which every value and every key knows its place. Read by hand from the parser's events, for
//! three reasons: numbers stay exactly what was written, whoever makes a mistake hears where, and neither aliases
//! nor nesting can cost more than the limits allow.
//!
//! What a plain scalar means is fixed here and will not change: `null`, `~` and nothing are null; `true` and `false`
//! (also `True`, `TRUE`, …) are booleans; what JSON calls a number is that number; everything else is text, `yes` and
//! `on` too. What other readers of YAML take for a number (`0x1F`, `007`, `+1`, `.5`, `.inf`) is refused.

use std::collections::{HashMap, HashSet};

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span, Tag};

use super::{
    exact::{Json, is_number},
    limits::{MAX_RECIPE_BYTES, MAX_VALUE_DEPTH, MAX_YAML_VALUES},
    mistake::{Mistakes, Place},
};

/// A value and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Yaml {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// As it was written.
    Number(String),
    Text(String),
    List(Vec<Yaml>),
    /// In the order of the document; no key comes twice.
    Map(Vec<(Key, Yaml)>),
}

/// A key and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) name: String,
}

impl Yaml {
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// The member at a key; none when this is no map.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Value::Map(members) = &self.value else { return None };
        members.iter().find(|(found, _)| found.name == key).map(|(_, value)| value)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn members(&self) -> &[(Key, Self)] {
        match &self.value {
            Value::Map(members) => members,
            _ => &[],
        }
    }

    pub(super) fn elements(&self) -> &[Self] {
        match &self.value {
            Value::List(elements) => elements,
            _ => &[],
        }
    }

    /// From JSON, without places.
    pub(super) fn of_json(json: &Json) -> Self {
        let place = Place::default();
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(text) => Value::Number(text.clone()),
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(elements) => Value::List(elements.iter().map(Self::of_json).collect()),
            Json::Object(members) => {
                let member = |(name, value): (&String, &Json)| {
                    (Key { place, name: name.clone() }, Self::of_json(value))
                };
                Value::Map(members.iter().map(member).collect())
            }
        };
        Self { place, value }
    }

    /// As JSON. The depth of the tree is bounded, so the recursion is.
    pub(super) fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Number(text) => Json::Number(text.clone()),
            Value::Text(text) => Json::String(text.clone()),
            Value::List(elements) => Json::Array(elements.iter().map(Self::to_json).collect()),
            Value::Map(members) => {
                Json::Object(members.iter().map(|(key, value)| (key.name.clone(), value.to_json())).collect())
            }
        }
    }
}

/// Reads a file that holds one document.
///
/// # Errors
/// The first mistake.
pub(super) fn read(file: &str, text: &str) -> Result<Yaml, Mistakes> {
    let refuse = |(place, message): Refused| Mistakes::one(file, place, message);
    if text.len() > MAX_RECIPE_BYTES {
        let reason =
            format!("is {} bytes long; at most {MAX_RECIPE_BYTES} (256 KiB) are allowed", text.len());
        return Err(refuse((Place::default(), reason)));
    }
    if let Some(at) = text.find('\0') {
        let before = &text[..at];
        let line_begin = before.rfind('\n').map_or(0, |end| end + 1);
        let place = Place {
            line: before.matches('\n').count() + 1,
            column: before[line_begin..].chars().count() + 1,
        };
        return Err(refuse((place, "NUL is not allowed".to_owned())));
    }
    let options = granit_parser::options! {
        disallow_directives: true,
        flow_nesting_limit: MAX_VALUE_DEPTH,
        block_nesting_limit: MAX_VALUE_DEPTH,
    };
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        match event {
            Ok((event, span)) => builder.event(event, span).map_err(refuse)?,
            Err(error) => {
                let place = Place { line: error.marker().line(), column: error.marker().col() + 1 };
                return Err(refuse((place, error.info())));
            }
        }
    }
    builder.root.ok_or_else(|| refuse((Place::default(), "there is no document in the file".to_owned())))
}

type Refused = (Place, String);

/// A collection whose end has not come yet.
struct Open {
    place: Place,
    anchor: usize,
    values_before: usize,
    content: Content,
}

enum Content {
    List(Vec<Yaml>),
    Map { members: Vec<(Key, Yaml)>, names: HashSet<String>, key: Option<Key> },
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Yaml>,
    documents: usize,
    /// Finished anchors, and of how many values each consists.
    anchors: HashMap<usize, (Yaml, usize)>,
    values: usize,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Refused> {
        let place = Place { line: span.start.line(), column: span.start.col() + 1 };
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err((
                        place,
                        "a recipe is one document; put the next into a file of its own".to_owned(),
                    ));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref()).map_err(|reason| (place, reason))?;
                self.count(1, place)?;
                let yaml = Yaml { place, value };
                if anchor > 0 {
                    self.anchors.insert(anchor, (yaml.clone(), 1));
                }
                self.put(yaml)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.begin(place, anchor, tag.as_deref(), Content::List(Vec::new()))?;
            }
            Event::MappingStart(_, anchor, tag) => {
                let content = Content::Map { members: Vec::new(), names: HashSet::new(), key: None };
                self.begin(place, anchor, tag.as_deref(), content)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(id) => {
                let Some((yaml, size)) = self.anchors.get(&id) else {
                    return Err((place, "an alias cannot stand inside what it names".to_owned()));
                };
                let (mut yaml, size) = (yaml.clone(), *size);
                self.count(size, place)?;
                if self.open.len() + depth(&yaml) > MAX_VALUE_DEPTH {
                    return Err((place, format!("values are nested more than {MAX_VALUE_DEPTH} deep")));
                }
                // A mistake in it is reported where it was written; that it is used here is told by the alias.
                if matches!(yaml.value, Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_)) {
                    yaml.place = place;
                }
                self.put(yaml)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, more: usize, place: Place) -> Result<(), Refused> {
        self.values += more;
        if self.values > MAX_YAML_VALUES {
            return Err((
                place,
                format!("there are more than {MAX_YAML_VALUES} values, those behind aliases counted"),
            ));
        }
        Ok(())
    }

    fn begin(
        &mut self,
        place: Place,
        anchor: usize,
        tag: Option<&Tag>,
        content: Content,
    ) -> Result<(), Refused> {
        if let Some(tag) = tag {
            return Err((place, format!("the tag {} is not supported", tag.original())));
        }
        if let Some(Open { content: Content::Map { key: None, .. }, .. }) = self.open.last() {
            return Err((place, "a key must be text".to_owned()));
        }
        if self.open.len() == MAX_VALUE_DEPTH {
            return Err((place, format!("values are nested more than {MAX_VALUE_DEPTH} deep")));
        }
        self.count(1, place)?;
        self.open.push(Open { place, anchor, values_before: self.values, content });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Refused> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let value = match open.content {
            Content::List(elements) => Value::List(elements),
            Content::Map { members, .. } => Value::Map(members),
        };
        let yaml = Yaml { place: open.place, value };
        if open.anchor > 0 {
            self.anchors.insert(open.anchor, (yaml.clone(), self.values - open.values_before + 1));
        }
        self.put(yaml)
    }

    fn put(&mut self, yaml: Yaml) -> Result<(), Refused> {
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(yaml),
            Some(Content::List(elements)) => elements.push(yaml),
            Some(Content::Map { members, names, key }) => match key.take() {
                Some(name) => members.push((name, yaml)),
                None => {
                    let name = match yaml.value {
                        Value::Text(text) | Value::Number(text) => text,
                        Value::Bool(value) => value.to_string(),
                        _ => return Err((yaml.place, "a key must be text".to_owned())),
                    };
                    if name == "<<" {
                        return Err((
                            yaml.place,
                            "the merge key `<<` is not supported; use an alias".to_owned(),
                        ));
                    }
                    if !names.insert(name.clone()) {
                        return Err((yaml.place, format!("the key {name:?} comes twice")));
                    }
                    *key = Some(Key { place: yaml.place, name });
                }
            },
        }
        Ok(())
    }
}

fn depth(yaml: &Yaml) -> usize {
    match &yaml.value {
        Value::List(elements) => 1 + elements.iter().map(depth).max().unwrap_or(0),
        Value::Map(members) => 1 + members.iter().map(|(_, value)| depth(value)).max().unwrap_or(0),
        _ => 0,
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    match tag {
        Some(tag) if tag.is_yaml_core_schema_tag("str") => return Ok(Value::Text(text.to_owned())),
        Some(tag) => return Err(format!("the tag {} is not supported", tag.original())),
        None => {}
    }
    if style != ScalarStyle::Plain {
        return Ok(Value::Text(text.to_owned()));
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        text if is_number(text) => Value::Number(text.to_owned()),
        text if looks_like_a_number(text) => {
            return Err(format!("{text} may be read as a number or not: quote it, or write it as JSON does"));
        }
        text => Value::Text(text.to_owned()),
    })
}

/// What the core schema of YAML 1.2 calls a number.
fn looks_like_a_number(text: &str) -> bool {
    let rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all = |digits: &str, is: fn(&char) -> bool| !digits.is_empty() && digits.chars().all(|c| is(&c));
    if let Some(hex) = rest.strip_prefix("0x") {
        return all(hex, char::is_ascii_hexdigit);
    }
    if let Some(octal) = rest.strip_prefix("0o") {
        return all(octal, |c| ('0'..='7').contains(c));
    }
    if matches!(rest, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let (mantissa, exponent) = rest.split_once(['e', 'E']).map_or((rest, None), |(m, e)| (m, Some(e)));
    let exponent_fits =
        exponent.is_none_or(|e| all(e.strip_prefix(['+', '-']).unwrap_or(e), char::is_ascii_digit));
    let digits = mantissa.replacen('.', "", 1);
    exponent_fits && all(&digits, char::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        read("a.yaml", text).unwrap_or_else(|e| panic!("{e}")).to_json().to_string()
    }

    fn refusal(text: &str) -> String {
        read("a.yaml", text).expect_err(text).to_string()
    }

    /// RP-11
    #[test]
    fn values_are_what_was_written() {
        assert_eq!(
            json("a: [1.50, 9223372036854775808, 1E+2, -0, yes, null, ~, 'true', true]\nb: \"1\"\nc:\n"),
            r#"{"a":[1.50,9223372036854775808,1E+2,-0,"yes",null,null,"true",true],"b":"1","c":null}"#
        );
        assert_eq!(
            json("x: &x {a: [1]}\ny: *x\nz: !!str 1\n1: 2"),
            r#"{"1":2,"x":{"a":[1]},"y":{"a":[1]},"z":"1"}"#
        );
        assert_eq!(json("a: |\n  ${{ b }}\n"), r#"{"a":"${{ b }}\n"}"#);
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        for (text, says) in [
            ("a: 1\nb: 0x1F\n", "a.yaml:2:4: 0x1F may be read as a number"),
            ("a: 007", "a.yaml:1:4: 007 may"),
            ("a: +1", "a.yaml:1:4: +1 may"),
            ("a: .5", "a.yaml:1:4: .5 may"),
            ("a: -.inf", "a.yaml:1:4: -.inf may"),
            ("a: 1e", ""),
            ("a: 1\nb: 2\na: 3\n", "a.yaml:3:1: the key \"a\" comes twice"),
            ("a: {b: 1,\n  <<: {c: 2}}", "a.yaml:2:3: the merge key"),
            ("? [a]\n: b", "a.yaml:1:3: a key must be text"),
            ("a: !thing 1", "a.yaml:1:11: the tag !thing"),
            ("a: 1\n---\nb: 2\n", "a.yaml:2:1: a recipe is one document"),
            ("a: &a [*a]", "a.yaml:1:8: an alias cannot"),
            ("a: *b", "a.yaml:1:4: "),
            ("a: b\n  c: d", "a.yaml:2:4: "),
            ("%YAML 1.2\n---\na: 1", "a.yaml:1:1: "),
            ("", "a.yaml: there is no document"),
            ("a: 1\nb: \0", "a.yaml:2:4: NUL"),
        ] {
            if says.is_empty() {
                read("a.yaml", text).expect(text);
                continue;
            }
            let refused = refusal(text);
            assert!(refused.starts_with(says), "{text:?}: {refused}");
        }
    }

    #[test]
    fn neither_aliases_nor_nesting_cost_more_than_the_limits() {
        let mut bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
        for n in 1..9 {
            let again = format!("*a{}, ", n - 1).repeat(10);
            bomb += &format!("a{n}: &a{n} [{}]\n", again.trim_end_matches(", "));
        }
        assert!(refusal(&bomb).contains("more than 50000 values"));
        for deep in [MAX_VALUE_DEPTH + 1, 10_000] {
            refusal(&"[".repeat(deep));
            refusal(&format!("{}1{}", "[".repeat(deep), "]".repeat(deep)));
            refusal(&format!("{}1", "{a: ".repeat(deep)));
            refusal(&format!("{}1", "- ".repeat(deep)));
        }
        // Each alias deepens the last: no single level is deep.
        let mut deep = "a0: &a0 [1]\n".to_owned();
        for n in 1..60 {
            deep += &format!("a{n}: &a{n} [[[*a{}]]]\n", n - 1);
        }
        assert!(refusal(&deep).contains("nested"));
        assert!(refusal(&"x".repeat(MAX_RECIPE_BYTES + 1)).contains("256 KiB"));
    }
}
