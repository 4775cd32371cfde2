//! The published JSON Schema of recipe files, made from the table that the checker reads. What a schema cannot say
//! (ids that come twice, references to later nodes, amounts) only `leasehold recipe check` finds.

use serde_json::{Map, Value, json};

use super::{
    grammar::{self, Kind, Shape},
    limits::{LANGUAGE_VERSION, MAX_ATTEMPTS, MAX_ID},
};

/// The schema, as JSON Schema 2020-12.
#[must_use]
pub fn schema() -> Value {
    let shapes = grammar::shapes().into_iter();
    let mut definitions: Map<String, Value> =
        shapes.map(|shape| (shape.name.to_owned(), of_shape(shape))).collect();
    for (_, shape) in grammar::ops::ALL {
        definitions.insert(shape.name.to_owned(), of_inputs(shape));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("Leasehold recipe, language version {LANGUAGE_VERSION}"),
        "$ref": "#/$defs/recipe",
        "$defs": definitions,
    })
}

fn of_shape(shape: &Shape) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in shape.fields() {
        let mut described = of_kind(field.kind);
        if let Some(object) = described.as_object_mut() {
            object.insert("description".to_owned(), json!(field.about));
        }
        properties.insert(field.key.to_owned(), described);
        if field.required {
            required.push(field.key);
        }
    }
    let mut described = json!({
        "description": shape.about,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    if !shape.one_of.is_empty() {
        let alternatives: Vec<Value> = shape.one_of.iter().map(|key| json!({ "required": [key] })).collect();
        described["oneOf"] = json!(alternatives);
    }
    if shape.fields().any(|field| field.key == "op") {
        // A recipe's own inputs are declared; those of its root's op have another key.
        let own = shape.fields().find(|field| field.key == "with").map_or("inputs", |field| field.key);
        let of_op = |(op, inputs): &(&str, &Shape)| {
            let reference = json!({ "$ref": format!("#/$defs/{}", inputs.name) });
            json!({
                "if": { "properties": { "op": { "const": op } }, "required": ["op"] },
                "then": { "properties": { own: reference } },
            })
        };
        described["allOf"] = grammar::ops::ALL.iter().map(of_op).collect();
    }
    described
}

/// The inputs of an op: any of them may come out of a template.
fn of_inputs(shape: &Shape) -> Value {
    let mut described = of_shape(shape);
    if let Some(properties) = described["properties"].as_object_mut() {
        for property in properties.values_mut() {
            let plain = property.take();
            *property = json!({ "anyOf": [plain, { "type": "string", "pattern": r"\$\{\{" }] });
        }
    }
    described
}

fn of_kind(kind: Kind) -> Value {
    let reference = |shape: &Shape| json!({ "$ref": format!("#/$defs/{}", shape.name) });
    let variable = json!({ "pattern": format!("^[A-Za-z_][A-Za-z0-9_]{{0,{}}}$", MAX_ID - 1) });
    match kind {
        Kind::Id => json!({
            "type": "string",
            "pattern": format!("^[A-Za-z_][A-Za-z0-9_-]{{0,{}}}$", MAX_ID - 1),
        }),
        Kind::Name => json!({ "type": "string", "minLength": 1, "maxLength": 200 }),
        Kind::Version => json!({ "const": LANGUAGE_VERSION }),
        Kind::Text | Kind::Reference => json!({ "type": "string" }),
        Kind::Condition => json!({
            "type": ["boolean", "string"],
            "pattern": r"\$\{\{",
        }),
        Kind::Amount => json!({ "type": ["string", "number"] }),
        Kind::Duration => json!({ "type": "string", "pattern": "^[0-9]" }),
        Kind::Attempts => json!({ "type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS }),
        Kind::Names => json!({
            "type": "array",
            "items": { "type": "string", "minLength": 1, "maxLength": 200 },
        }),
        Kind::Path => json!({ "type": "string", "minLength": 1 }),
        Kind::Word(words) => json!({ "enum": words }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Argv => json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 }),
        Kind::Filled => json!({ "type": "string", "minLength": 1 }),
        Kind::TextMap => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Kind::Map => json!({ "type": "object" }),
        Kind::Span => json!({ "type": "string" }),
        Kind::SpanOrSeconds => json!({ "type": ["string", "integer"] }),
        Kind::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Wholes(least, most) => json!({
            "type": "array",
            "items": { "anyOf": [
                { "type": "integer", "minimum": least, "maximum": most },
                { "type": "string", "pattern": r"\$\{\{" },
            ] },
        }),
        Kind::Constant | Kind::Literal | Kind::Value => json!({}),
        Kind::Inputs => json!({ "type": "object" }),
        Kind::Constants => json!({ "type": "object", "propertyNames": variable }),
        Kind::One(shape) => reference(shape),
        Kind::Many(shape) => json!({ "type": "array", "minItems": 1, "items": reference(shape) }),
        Kind::ByName(shape) => json!({
            "type": "object",
            "propertyNames": variable,
            "additionalProperties": reference(shape),
        }),
    }
}

/// The grammar for people: the appendix of `docs/recipes.md`.
#[must_use]
pub fn grammar() -> String {
    described(&grammar::shapes())
}

/// Shapes as tables.
pub(super) fn described(shapes: &[&Shape]) -> String {
    let mut text = String::new();
    for shape in shapes {
        text.push_str(&format!("### `{}`\n\n{}", shape.name, shape.about));
        if !shape.one_of.is_empty() {
            let keys: Vec<String> = shape.one_of.iter().map(|key| format!("`{key}`")).collect();
            text.push_str(&format!(" Exactly one of {}.", keys.join(", ")));
        }
        text.push_str("\n\n| key | holds | |\n|---|---|---|\n");
        for field in shape.fields() {
            let required = if field.required { " (required)" } else { "" };
            text.push_str(&format!(
                "| `{}`{required} | {} | {} |\n",
                field.key,
                field.kind.described(),
                field.about
            ));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_every_key_of_every_shape_and_no_other() {
        let schema = schema();
        for shape in grammar::shapes() {
            let properties = schema["$defs"][shape.name]["properties"].as_object().expect(shape.name);
            let mut keys: Vec<&str> = shape.fields().map(|field| field.key).collect();
            keys.sort_unstable();
            assert_eq!(properties.keys().map(String::as_str).collect::<Vec<_>>(), keys, "{}", shape.name);
            for field in shape.fields() {
                if let Kind::One(inner) | Kind::Many(inner) | Kind::ByName(inner) = field.kind {
                    assert!(schema["$defs"][inner.name].is_object(), "{} is not published", inner.name);
                }
            }
        }
    }

    #[test]
    fn the_appendix_of_the_guide_is_the_grammar() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipes.md");
        let guide = std::fs::read_to_string(path).expect("docs/recipes.md");
        let (begin, end) = ("<!-- grammar: begin -->\n\n", "<!-- grammar: end -->");
        let (before, rest) = guide.split_once(begin).expect("the mark of its beginning");
        let (appendix, after) = rest.split_once(end).expect("the mark of its end");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, format!("{before}{begin}{}{end}{after}", grammar())).expect("written");
        } else {
            assert_eq!(appendix, grammar(), "run this test with UPDATE=1 and look at the difference");
        }
    }
}
