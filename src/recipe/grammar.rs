//! Which keys a recipe has and what they hold: the one table from which the checker, the published JSON Schema and
//! the appendix of `docs/recipes.md` are made.

mod check;
pub(super) mod ops;
mod rules;

pub(super) use self::check::{check, distance, duration};
use super::{
    limits::{LANGUAGE_VERSION, MAX_ATTEMPTS},
    mistake::Place,
    yaml::Yaml,
};

/// What a key may hold.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// `[A-Za-z_][A-Za-z0-9_-]*`: one part of a path.
    Id,
    /// Any text of 1 to 200 characters, none of them a control character.
    Name,
    /// The version of the language.
    Version,
    /// Text.
    Text,
    /// `true`, `false`, or one template.
    Condition,
    /// Text or a number, in either a template.
    Amount,
    /// Text, which may hold templates.
    Reference,
    /// `250ms`, `30s`, `10m`.
    Duration,
    /// A whole number of attempts.
    Attempts,
    /// A list of texts.
    Names,
    /// The path of a file.
    Path,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any value; a template in it is text.
    Constant,
    /// Any value, as it stands.
    Literal,
    /// A list of texts.
    Texts,
    /// A list of texts, the first of which names a program.
    Argv,
    /// Text that is not empty.
    Filled,
    /// A map of texts.
    TextMap,
    /// A map of any values.
    Map,
    /// How long an op may take.
    Span,
    /// How long to wait: a duration, or a number of seconds.
    SpanOrSeconds,
    /// A whole number in these bounds.
    Whole(i64, i64),
    /// A list of them.
    Wholes(i64, i64),
    /// Any value, with templates.
    Value,
    /// A map of any values, with templates.
    Inputs,
    /// A map of constants by name.
    Constants,
    /// One shape.
    One(&'static Shape),
    /// At least one of a shape.
    Many(&'static Shape),
    /// A map of a shape, by name.
    ByName(&'static Shape),
}

/// A key.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) key: &'static str,
    pub(super) kind: Kind,
    pub(super) required: bool,
    /// One sentence for people.
    pub(super) about: &'static str,
}

/// A map with fixed keys.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Its keys, in groups that shapes share.
    pub(super) groups: &'static [&'static [Field]],
    /// Exactly one of these keys must be there.
    pub(super) one_of: &'static [&'static str],
}

impl Shape {
    pub(super) fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    /// One of it, in a sentence: "a node", "an input".
    pub(super) fn one(&self) -> String {
        let article = match self.name {
            "needs" | "resources" => "",
            name if name.starts_with(['a', 'e', 'i', 'o', 'u']) => "an ",
            _ => "a ",
        };
        format!("{article}{}", self.name)
    }
}

pub(super) const fn field(key: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { key, kind, required: false, about }
}

pub(super) const fn required(key: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { key, kind, required: true, about }
}

/// What a node does.
const FORMS: &[&str] = &["op", "sequence", "state", "parallel", "include"];

static FORM_FIELDS: [Field; 5] = [
    field("op", Kind::Name, "One task: the op with this name."),
    field(
        "sequence",
        Kind::Many(&NODE),
        "Nodes one after the other; the output is a map of their outputs by id.",
    ),
    field("state", Kind::One(&MACHINE), "A state machine; the output is that of the state that ends it."),
    field("parallel", Kind::Many(&NODE), "Nodes at once; the output is a map of their outputs by id."),
    field(
        "include",
        Kind::Path,
        "Another recipe, inline: a file below the root recipe's folder, relative to this one.",
    ),
];

static NODE_FIELDS: [Field; 5] = [
    field("when", Kind::Condition, "Skips the node unless it holds; its outputs are then null."),
    field("retry", Kind::One(&RETRY), "More attempts after a failure."),
    field("timeout", Kind::Duration, "The longest that one attempt may take."),
    field(
        "catch",
        Kind::One(&CATCH),
        "Runs when the last attempt has failed and reads `error`; its output is then the node's.",
    ),
    field(
        "execution_needs",
        Kind::One(&NEEDS),
        "What the tasks in this node need, beyond the scopes around it.",
    ),
];

static INPUTS_FIELD: [Field; 1] =
    [field("inputs", Kind::Inputs, "The inputs of the op or of the included recipe.")];

static ID_FIELD: [Field; 1] =
    [required("id", Kind::Id, "The node's name in paths and in templates, unlike its siblings'.")];

/// A file.
pub(super) static RECIPE: Shape = Shape {
    name: "recipe",
    about: "A recipe file: one document.",
    groups: &[
        &[
            required("id", Kind::Id, "The recipe's name."),
            field(
                "version",
                Kind::Version,
                "The version of the language that it is written in: 1, also when left out.",
            ),
            field(
                "job_type",
                Kind::Name,
                "The first half of the job's routes: `recipe`, unless it says otherwise.",
            ),
            field("description", Kind::Text, "For people."),
            field(
                "inputs",
                Kind::ByName(&INPUT),
                "The inputs that a submission or an including recipe gives.",
            ),
            field("vars", Kind::Constants, "Constants, by name."),
            field("execution", Kind::One(&NEEDS), "The base of every task's needs."),
            field(
                "with",
                Kind::Inputs,
                "The inputs of the root's op or included recipe, since `inputs` declares the recipe's own.",
            ),
        ],
        &NODE_FIELDS,
        &FORM_FIELDS,
    ],
    one_of: FORMS,
};

/// A node in a sequence, or a branch.
pub(super) static NODE: Shape = Shape {
    name: "node",
    about: "A node of a sequence, or a branch of a parallel.",
    groups: &[&ID_FIELD, &NODE_FIELDS, &INPUTS_FIELD, &FORM_FIELDS],
    one_of: FORMS,
};

static CATCH: Shape = Shape {
    name: "catch",
    about: "What runs after a failure: a node.",
    groups: &[
        &[field("id", Kind::Id, "Its name in paths: `catch`, unless it says otherwise.")],
        &NODE_FIELDS,
        &INPUTS_FIELD,
        &FORM_FIELDS,
    ],
    one_of: FORMS,
};

static MACHINE: Shape = Shape {
    name: "machine",
    about: "States and the ways between them; it may loop.",
    groups: &[&[
        required("initial", Kind::Id, "The id of the state where it begins."),
        required("states", Kind::Many(&STATE), "The states."),
    ]],
    one_of: &[],
};

static STATE: Shape = Shape {
    name: "state",
    about: "A state: a node and the ways out of it. A state without transitions ends the machine.",
    groups: &[
        &ID_FIELD,
        &NODE_FIELDS,
        &INPUTS_FIELD,
        &FORM_FIELDS,
        &[field(
            "transitions",
            Kind::Many(&TRANSITION),
            "The first that holds is taken; if none does, the machine fails: `no_transition`.",
        )],
    ],
    one_of: FORMS,
};

static TRANSITION: Shape = Shape {
    name: "transition",
    about: "A way out of a state.",
    groups: &[&[
        required("to", Kind::Id, "The id of the next state."),
        field("when", Kind::Condition, "Holds always where it is left out."),
        field(
            "payload",
            Kind::Value,
            "What the next state reads as `transition.payload`; null where it is left out.",
        ),
    ]],
    one_of: &[],
};

static RETRY: Shape = Shape {
    name: "retry",
    about: "When a failed node is tried again. Each attempt is recorded under a path of its own.",
    groups: &[&[
        required("max_attempts", Kind::Attempts, "How many attempts in all."),
        field("backoff", Kind::Duration, "The wait before the second attempt: 1s. It doubles with each."),
        field("backoff_cap", Kind::Duration, "The longest wait: 1m."),
        field(
            "on",
            Kind::Names,
            "Kinds and codes of failures that are tried again; every failure, where it is left out.",
        ),
    ]],
    one_of: &[],
};

static NEEDS: Shape = Shape {
    name: "needs",
    about: "What tasks need of the worker that runs them.",
    groups: &[&[
        field("resources", Kind::One(&RESOURCES), "Amounts: minimums."),
        field("platform", Kind::Reference, "`os/architecture`, or with a variant."),
        field("image", Kind::Reference, "The image that the worker itself runs in."),
    ]],
    one_of: &[],
};

static RESOURCES: Shape = Shape {
    name: "resources",
    about: "Amounts, as everywhere: `500m`, `2`, `512Mi`, `16Gi`.",
    groups: &[&[
        field("cpu", Kind::Amount, "Cores."),
        field("memory", Kind::Amount, "Bytes of memory."),
        field("ephemeral-storage", Kind::Amount, "Bytes of scratch space."),
    ]],
    one_of: &[],
};

static INPUT: Shape = Shape {
    name: "input",
    about: "A declared input.",
    groups: &[&[
        required("type", Kind::Word(INPUT_TYPES), "What it must be."),
        field("default", Kind::Constant, "Taken where none is given; without one the input is required."),
        field("description", Kind::Text, "For people."),
    ]],
    one_of: &[],
};

/// The types of inputs.
pub(super) const INPUT_TYPES: &[&str] = &["string", "integer", "number", "boolean", "array", "object", "any"];

/// Every shape, in the order in which they are documented.
pub(super) fn shapes() -> [&'static Shape; 10] {
    [&RECIPE, &INPUT, &NODE, &CATCH, &RETRY, &NEEDS, &RESOURCES, &MACHINE, &STATE, &TRANSITION]
}

fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

impl Kind {
    /// What messages and the grammar call it.
    pub(super) fn described(self) -> String {
        match self {
            Self::Id => "an id".to_owned(),
            Self::Name => "a name".to_owned(),
            Self::Version => format!("the number {LANGUAGE_VERSION}"),
            Self::Text => "text".to_owned(),
            Self::Condition => "true, false or one template".to_owned(),
            Self::Amount => "text or a number, or a template".to_owned(),
            Self::Reference => "text, or a template".to_owned(),
            Self::Duration => "a duration".to_owned(),
            Self::Attempts => format!("a whole number from 1 to {MAX_ATTEMPTS}"),
            Self::Names => "a list of names".to_owned(),
            Self::Path => "the path of a file".to_owned(),
            Self::Word(words) => format!("one of {}", listed(words)),
            Self::Constant => "any value without templates".to_owned(),
            Self::Literal => "any value".to_owned(),
            Self::Texts => "a list of texts".to_owned(),
            Self::Argv => "a list of texts: the program, then its arguments".to_owned(),
            Self::Filled => "text that is not empty".to_owned(),
            Self::TextMap => "a map of texts".to_owned(),
            Self::Map => "a map".to_owned(),
            Self::Span => "a duration".to_owned(),
            Self::SpanOrSeconds => "a duration, or a number of seconds".to_owned(),
            Self::Whole(least, most) => format!("a whole number from {least} to {most}"),
            Self::Wholes(least, most) => format!("a list of whole numbers from {least} to {most}"),
            Self::Value => "any value, with templates".to_owned(),
            Self::Inputs => "a map of values, with templates".to_owned(),
            Self::Constants => "a map of values without templates".to_owned(),
            Self::One(shape) => format!("a map: {}", shape.name),
            Self::Many(shape) => format!("a list of {}s", shape.name),
            Self::ByName(shape) => format!("a map of {}s by name", shape.name),
        }
    }
}

/// Every text that a shape keeps a file's path in, with its place.
pub(super) fn paths<'a>(yaml: &'a Yaml, shape: &Shape, found: &mut Vec<(&'a str, Place)>) {
    for (key, value) in yaml.members() {
        let Some(field) = shape.fields().find(|field| field.key == key.name) else { continue };
        match field.kind {
            Kind::Path => found.extend(value.text().map(|text| (text, value.place))),
            Kind::One(shape) => paths(value, shape, found),
            Kind::Many(shape) => value.elements().iter().for_each(|element| paths(element, shape, found)),
            _ => {}
        }
    }
}
