//! Which keys a test file has and what they hold. Checked as a recipe is: `grammar.rs`.

use crate::recipe::grammar::{Field, Kind, Shape, field, required};

/// A test file.
pub(super) static FILE: Shape = Shape {
    name: "test file",
    about: "Tests of one recipe: one document.",
    groups: &[&[
        required("recipe", Kind::Path, "The recipe: a file, relative to this one."),
        field("description", Kind::Text, "For people."),
        required("tests", Kind::Many(&TEST), "The tests."),
    ]],
    one_of: &[],
};

static TEST: Shape = Shape {
    name: "test",
    about: "One job of the recipe, from its submission to its end, in a time of its own.",
    groups: &[&[
        required("name", Kind::Text, "What it shows."),
        field("mode", Kind::Word(MODES), "`crash`: once more, with a crash after every event."),
        field("inputs", Kind::Literal, "The job's inputs: a map."),
        field("payload", Kind::Literal, "The job's client payload: a map, or null."),
        field("require", Kind::One(&REQUIRE), "What the submission says that every task needs."),
        field("secrets", Kind::Literal, "The workers' secrets: a map of texts of at least 4 bytes."),
        field("workers", Kind::Many(&WORKER), "The workers, in the order in which they ask for work."),
        field("ops", Kind::Many(&FIXTURE), "What ops do. The first that fits a call answers it."),
        field("signals", Kind::Many(&SIGNAL), "Signals, and when they are sent."),
        field("children", Kind::Many(&CHILD), "The ends of child jobs."),
        required("expect", Kind::One(&EXPECT), "What must come of it."),
    ]],
    one_of: &[],
};

pub(super) const MODES: &[&str] = &["plain", "crash"];

static REQUIRE: Shape = Shape {
    name: "requirement",
    about: "As `--require-…`.",
    groups: &[&[
        field("cpu", Kind::Amount, "Cores."),
        field("memory", Kind::Amount, "Bytes of memory."),
        field("ephemeral-storage", Kind::Amount, "Bytes of scratch space."),
        field("platform", Kind::Text, "`os/architecture`, or with a variant."),
        field("image", Kind::Text, "The image that the worker itself runs in."),
    ]],
    one_of: &[],
};

static WORKER: Shape = Shape {
    name: "worker",
    about: "A worker.",
    groups: &[&[
        required("id", Kind::Name, "Its name."),
        field("allocation", Kind::One(&ALLOCATION), "What it has; what is not said satisfies nothing."),
        field("ops", Kind::Names, "The ops that it has: all, where it is left out."),
    ]],
    one_of: &[],
};

static ALLOCATION: Shape = Shape {
    name: "allocation",
    about: "As `--allocation-…`.",
    groups: &[&[
        field("cpu", Kind::Amount, "Cores."),
        field("memory", Kind::Amount, "Bytes of memory."),
        field("ephemeral-storage", Kind::Amount, "Bytes of scratch space."),
        field("platform", Kind::Text, "`os/architecture`, or with a variant."),
        field("image", Kind::Text, "What its own image was launched by."),
        field("image-digest", Kind::Text, "The digest of that image's manifest."),
        field("image-id", Kind::Text, "The engine's id of that image."),
    ]],
    one_of: &[],
};

static REPLY_FIELDS: [Field; 5] = [
    field("inputs", Kind::Literal, "The inputs that the call must have, secrets as `***`."),
    field("takes", Kind::Duration, "How long it takes: no time, where it is left out."),
    field("output", Kind::Literal, "It succeeds with this: null, where neither is given."),
    field("failure", Kind::One(&FAILURE), "It fails with this."),
    field("suspend_execution", Kind::Literal, "The change of needs that it asks for, when it succeeds."),
];

static FIXTURE: Shape = Shape {
    name: "fixture",
    about: "What calls of ops come to.",
    groups: &[
        &[
            field("op", Kind::Name, "Calls of this op."),
            field(
                "path",
                Kind::Text,
                "Calls at this path: `work/poll#3/fetch!2`, or without visits and attempts, which are then any.",
            ),
            field("attempt", Kind::Attempts, "Calls of this attempt."),
            field(
                "calls",
                Kind::Many(&REPLY),
                "Answers to successive calls, each for one. Without it the fixture itself answers every call.",
            ),
        ],
        &REPLY_FIELDS,
    ],
    one_of: &[],
};

static REPLY: Shape =
    Shape { name: "call", about: "What one call comes to.", groups: &[&REPLY_FIELDS], one_of: &[] };

static FAILURE: Shape = Shape {
    name: "failure",
    about: "A failure.",
    groups: &[&[
        field("kind", Kind::Word(KINDS), "`USER`, where it is left out."),
        required("code", Kind::Name, "The word for programs."),
        field("message", Kind::Text, "The words for people."),
    ]],
    one_of: &[],
};

pub(super) const KINDS: &[&str] = &["USER", "SYSTEM", "TIMEOUT"];

static SIGNAL: Shape = Shape {
    name: "signal",
    about: "A signal to the job.",
    groups: &[&[
        required("name", Kind::Name, "Its name."),
        field("at", Kind::Duration, "When, since the submission: at once, where it is left out."),
        field("data", Kind::Literal, "What comes with it: null, where it is left out."),
        field("key", Kind::Name, "Makes a repeat the same signal."),
        field("taken", Kind::Condition, "Whether the job takes it: true, where it is left out."),
    ]],
    one_of: &[],
};

static CHILD: Shape = Shape {
    name: "child",
    about: "The end of a child job.",
    groups: &[&[
        field("path", Kind::Text, "The child started at this path; any, where it is left out."),
        field("takes", Kind::Duration, "How long it takes: no time, where it is left out."),
        field("state", Kind::Word(ENDS), "How it ends: `COMPLETED`, where it is left out."),
        field("output", Kind::Literal, "Its result."),
        field("failure", Kind::One(&FAILURE), "Its failure."),
    ]],
    one_of: &[],
};

pub(super) const ENDS: &[&str] = &["COMPLETED", "FAILED", "CANCELED"];

static EXPECT: Shape = Shape {
    name: "expectation",
    about: "What must come of a test. What is left out may be anything.",
    groups: &[&[
        required("state", Kind::Word(STATES), "How the job stands in the end."),
        field("output", Kind::Literal, "Its result, numbers by value."),
        field("failure", Kind::One(&EXPECTED_FAILURE), "Why it failed."),
        field(
            "tasks",
            Kind::Names,
            "Every recorded task in the order of the records: `path`, or `path on worker`.",
        ),
        field("handoffs", Kind::Literal, "Every handoff in order: a list of handoffs, which may be empty."),
        field("took", Kind::Duration, "The time that passed, to the second."),
        field("payload", Kind::Literal, "The client payload, without what Leasehold publishes in it."),
    ]],
    one_of: &[],
};

pub(super) const STATES: &[&str] = &["COMPLETED", "FAILED", "CANCELED", "WAITING"];

static EXPECTED_FAILURE: Shape = Shape {
    name: "expected failure",
    about: "A failure.",
    groups: &[&[
        field("kind", Kind::Word(KINDS), "Whose fault it is."),
        field("code", Kind::Name, "The word for programs."),
        field("message", Kind::Text, "A part of the words for people."),
    ]],
    one_of: &[],
};

/// A handoff that is expected.
pub(super) static HANDOFF: Shape = Shape {
    name: "handoff",
    about: "A task that a worker handed on.",
    groups: &[&[
        required("path", Kind::Text, "The task."),
        field("from", Kind::Name, "The worker."),
        field("needs", Kind::One(&REQUIRE), "What the task needs."),
    ]],
    one_of: &[],
};

/// Every shape, in the order in which they are documented.
pub(super) fn all() -> [&'static Shape; 12] {
    [
        &FILE,
        &TEST,
        &REQUIRE,
        &WORKER,
        &ALLOCATION,
        &FIXTURE,
        &REPLY,
        &FAILURE,
        &SIGNAL,
        &CHILD,
        &EXPECT,
        &HANDOFF,
    ]
}
