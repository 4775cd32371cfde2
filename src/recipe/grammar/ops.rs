//! What the inputs of built-in ops hold: the table that `recipe check`, the JSON Schema and, at run time, the ops
//! themselves read. A new op: its shape here, and its row in [`ALL`].

use super::{
    Kind, Shape,
    check::{Unknown, kind, missing},
    field, required, rules,
};
use crate::recipe::{
    exact::Json,
    mistake::Place,
    template::has_template,
    yaml::{Value, Yaml},
};

static COMMAND: Shape = Shape {
    name: "command op",
    about: "A program in the worker's own environment.",
    groups: &[&[
        required("argv", Kind::Argv, "The program and its arguments."),
        field("env", Kind::TextMap, "Variables beyond the worker's own environment."),
        field("workdir", Kind::Text, "The folder that it runs in."),
        field("log_quota_bytes", Kind::Whole(0, i64::MAX), "How much of its output is kept."),
        field("timeout", Kind::Span, "The longest that it may run."),
    ]],
    one_of: &[],
};

static CONTAINER: Shape = Shape {
    name: "container op",
    about: "A container on a runtime node; its limits are what the task needs.",
    groups: &[&[
        required("image", Kind::Filled, "The image."),
        field("command", Kind::Texts, "Arguments."),
        field("entrypoint", Kind::Texts, "In the place of the image's own."),
        field("env", Kind::TextMap, "Variables."),
        field("workdir", Kind::Text, "The folder that it runs in."),
        field("user", Kind::Text, "Whom it runs as."),
        field("pids_limit", Kind::Whole(1, i64::MAX), "The most processes."),
        field("network", Kind::Text, "The network that it joins."),
        field("stop_grace_ms", Kind::Whole(0, i64::MAX), "Between asking it to stop and killing it."),
        field("pull", Kind::Word(&["missing", "always", "never"]), "When the image is fetched."),
        field("log_quota_bytes", Kind::Whole(0, i64::MAX), "How much of its output is kept."),
        field("timeout", Kind::Span, "The longest that it may run."),
    ]],
    one_of: &[],
};

static HTTP: Shape = Shape {
    name: "http op",
    about: "One request, made by the worker.",
    groups: &[&[
        required("url", Kind::Filled, "Where to."),
        field("method", Kind::Text, "GET, where it is left out."),
        field("headers", Kind::TextMap, "Headers of the request."),
        field("body", Kind::Value, "Text goes out as it is, anything else as JSON."),
        field("expected_status", Kind::Wholes(100, 599), "200 to 299, where it is left out."),
        field("max_redirects", Kind::Whole(0, 10), "How many redirects are followed: none."),
        field("timeout", Kind::Span, "The longest that it may take: 30s."),
    ]],
    one_of: &[],
};

static SLEEP: Shape = Shape {
    name: "sleep op",
    about: "Waits, on no worker.",
    groups: &[&[required("for", Kind::SpanOrSeconds, "How long.")]],
    one_of: &[],
};

static WAIT_FOR_SIGNAL: Shape = Shape {
    name: "wait_for_signal op",
    about: "Waits for a signal, on no worker.",
    groups: &[&[required("name", Kind::Filled, "Its name.")]],
    one_of: &[],
};

static CHILD_JOB: Shape = Shape {
    name: "child_job op",
    about: "Submits a job and waits for its end.",
    groups: &[&[
        field("handler", Kind::Filled, "A HANDLER job: the handler's name."),
        field("workflow", Kind::Filled, "A run of a workflow: its name."),
        field("container", Kind::Map, "A CONTAINER job: its definition."),
        field("heartbeat", Kind::Map, "A HEARTBEAT job: its definition."),
        field("payload", Kind::Value, "Its payload."),
        field("priority", Kind::Whole(-100, 100), "Its priority."),
        field(
            "on_parent_end",
            Kind::Word(&["cancel", "leave"]),
            "What becomes of it when this job ends without success: `cancel`.",
        ),
    ]],
    one_of: &["handler", "workflow", "container", "heartbeat"],
};

/// The built-in ops, by name.
pub(in crate::recipe) static ALL: [(&str, &Shape); 6] = [
    ("command", &COMMAND),
    ("container", &CONTAINER),
    ("http", &HTTP),
    ("sleep", &SLEEP),
    ("wait_for_signal", &WAIT_FOR_SIGNAL),
    ("child_job", &CHILD_JOB),
];

/// What a built-in op takes; none for an op that somebody registered.
pub(in crate::recipe) fn inputs_of(op: &str) -> Option<&'static Shape> {
    ALL.iter().find(|(name, _)| *name == op).map(|(_, shape)| *shape)
}

/// Checks the inputs of an op as a recipe has them: what a template gives is not known yet.
pub(in crate::recipe) fn check_written(
    op: &str,
    inputs: Option<&Yaml>,
    place: Place,
    report: &mut dyn FnMut(Place, String),
) {
    let Some(shape) = inputs_of(op) else { return };
    let none = Yaml { place, value: Value::Map(Vec::new()) };
    let inputs = inputs.unwrap_or(&none);
    let mut fits = true;
    check(inputs, shape, true, &mut |place, message| {
        fits = false;
        report(place, message);
    });
    if fits && let Err((place, reason)) = rules::check(op, inputs) {
        report(place, reason);
    }
}

/// Checks the inputs of an op as they are when it runs.
///
/// # Errors
/// The first mistake.
pub(in crate::recipe) fn check_given(op: &str, inputs: &Json) -> Result<(), String> {
    let Some(shape) = inputs_of(op) else { return Ok(()) };
    let mut first = None;
    let inputs = Yaml::of_json(inputs);
    check(&inputs, shape, false, &mut |_, message| {
        first.get_or_insert(message);
    });
    match first {
        Some(message) => Err(message),
        None => rules::check_given(op, &inputs),
    }
}

fn check(yaml: &Yaml, shape: &'static Shape, templates: bool, report: &mut dyn FnMut(Place, String)) {
    if !matches!(yaml.value, Value::Map(_)) {
        return report(yaml.place, format!("the inputs of {} are a map, not {}", shape.one(), yaml.kind()));
    }
    let mut unknown = Unknown::of(shape);
    for (key, value) in yaml.members() {
        let Some(field) = shape.fields().find(|field| field.key == key.name) else {
            report(key.place, unknown.told(&key.name));
            continue;
        };
        if value.value == Value::Null && !field.required {
            continue;
        }
        // What a template comes to is looked at when it has.
        if !(templates && value.text().is_some_and(has_template)) {
            kind(value, field, report);
        }
    }
    missing(yaml, shape, report);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::yaml;

    fn told(op: &str, inputs: &str) -> Vec<String> {
        let yaml = yaml::read("r.yaml", inputs).unwrap();
        let mut told = Vec::new();
        check_written(op, Some(&yaml), Place::default(), &mut |place, message| {
            told.push(format!("{}:{} {message}", place.line, place.column));
        });
        told
    }

    #[test]
    fn inputs_that_fit_are_silent_and_templates_are_not_known() {
        for (op, inputs) in [
            ("command", "{argv: [a, '${{ inputs.n }}'], env: {A: '1'}, timeout: 1h 30m, workdir: /}"),
            ("command", "{argv: '${{ inputs.argv }}', env: '${{ inputs.env }}', timeout: '${{ inputs.t }}'}"),
            (
                "http",
                "{url: 'http://a/', body: {n: 1}, expected_status: [200, '${{ inputs.s }}'], max_redirects: 3}",
            ),
            ("sleep", "{for: 90}"),
            ("sleep", "{for: 0s}"),
            ("child_job", "{workflow: '${{ inputs.w }}', priority: -5, on_parent_end: leave}"),
            ("mine", "{anything: [goes]}"),
            ("command", "{argv: ['${{ inputs.program }}'], env: {A: '${{ secrets.B }}'}, workdir: }"),
            (
                "container",
                "{image: '${{ inputs.image }}', command: [a, '${{ inputs.b }}'], env: , workdir: '${{ inputs.w }}', timeout: 1h}",
            ),
            ("container", "{image: 'localhost:5000/a/b:1', pull: never, network: none, user: '1:1'}"),
            (
                "http",
                "{url: '${{ inputs.u }}', method: post, headers: {A: '${{ secrets.B }}'}, body: {a: b}}",
            ),
            ("wait_for_signal", "{name: '${{ inputs.name }}'}"),
            ("child_job", "{container: {image: 'a:${{ inputs.tag }}', memory_bytes: 1}}"),
        ] {
            assert_eq!(told(op, inputs), Vec::<String>::new(), "{op} {inputs}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_place_and_at_run_time_too() {
        for (op, inputs, says) in [
            ("command", "{}", "1:1 `argv` is missing from this command op"),
            (
                "command",
                "{argv: [a], workdr: /}",
                "1:13 unknown key `workdr` in a command op; is `workdir` meant?",
            ),
            (
                "command",
                "{argv: a}",
                "1:8 `argv` must be a list of texts: the program, then its arguments, not text",
            ),
            ("command", "{argv: []}", "1:8 `argv` must name a program: [program, argument, …]"),
            ("command", "{argv: ['', a]}", "1:8 `argv` must name a program"),
            ("container", "{image: ''}", "1:9 `image` must not be empty"),
            ("command", "{argv: [a, 1]}", "1:12 `argv` holds texts, not a number: quote it, or"),
            (
                "command",
                "{argv: [a], env: {N: 3}}",
                "1:22 `N` in `env` must be text, not a number: quote it, or",
            ),
            ("command", "{argv: [a], timeout: 0s}", "1:22 `timeout` must be a duration longer than zero"),
            ("http", "{url: u, expected_status: [200, 99]}", "1:33 `expected_status` holds whole numbers"),
            (
                "http",
                "{url: u, max_redirects: 11}",
                "1:25 `max_redirects` must be a whole number from 0 to 10",
            ),
            ("sleep", "{for: soon}", "1:7 `for` must be a duration such as"),
            ("sleep", "{for: 1.5}", "1:7 `for` must be a whole number of seconds"),
            ("wait_for_signal", "{name: 3}", "1:8 `name` must be text that is not empty, not a number"),
            ("child_job", "{handler: a, workflow: b}", "1:1 a child_job op has exactly one of"),
            ("child_job", "{handler: a, on_parent_end: keep}", "1:29 `on_parent_end` must be one of"),
        ] {
            let found = told(op, inputs);
            assert_eq!(found.len(), 1, "{op} {inputs}: {found:?}");
            assert!(found[0].starts_with(says), "{op} {inputs}: {found:?}");
            let json = yaml::read("r.yaml", inputs).unwrap().to_json();
            let reason = check_given(op, &json).expect_err(inputs);
            assert!(found[0].ends_with(&reason), "{reason}");
        }
        let nobody = Json::parse(r#"{"name": "a\u001bb"}"#).unwrap();
        check_given("wait_for_signal", &nobody).expect_err("no signal has such a name");
        let text = Json::parse(r#"{"for": "${{ is data }}"}"#).unwrap();
        check_given("sleep", &text).expect_err("what was put in is data");
    }

    /// RQ-09, RQ-11, RQ-13, DK-33, HB-01: what the op would refuse whenever it ran, and a signal that nobody can send.
    #[test]
    fn what_an_op_could_never_do_is_told_with_its_place() {
        let long = format!("{{image: a, env: {{B: '{}'}}}}", "x".repeat(140_000));
        for (op, inputs, says) in [
            (
                "container",
                "{image: 'host/a:'}",
                "1:9 `image` \"host/a:\" is not an image reference: a tag is",
            ),
            ("container", "{image: UPPER/x}", "1:9 `image` \"UPPER/x\" is not an image reference"),
            ("container", "{image: a, command: [b, \"c\\0\"]}", "1:25 `command[1]` must not contain NUL"),
            ("container", "{image: '${{ inputs.i }}', env: {'a=b': c}}", "1:41 `env.a=b` a name must not"),
            ("container", "{image: a, env: {a.b: \"\\0\"}}", "1:23 `env.a.b` must not contain NUL"),
            ("container", &long, "1:21 `env.B` NAME=value is 140002 bytes long"),
            ("container", "{image: a, workdir: here}", "1:21 `workdir` must be an absolute path"),
            ("container", "{image: a, network: '-x'}", "1:21 `network` must be the name"),
            ("container", "{image: a, pids_limit: 99999999}", "1:24 `pids_limit` must be between 1 and"),
            ("command", "{argv: []}", "1:8 `argv` must name a program"),
            ("command", "{argv: ['', a]}", "1:8 `argv` must name a program"),
            ("command", "{argv: [a, \"b\\0\"]}", "1:12 `argv[1]` must not contain NUL"),
            ("command", "{argv: [a], env: {'': b}}", "1:18 `env.` a name must not be empty"),
            (
                "command",
                "{argv: [a], log_quota_bytes: 99999999999999}",
                "1:30 `log_quota_bytes` must be between 0",
            ),
            ("http", "{url: 'ftp://example.org/'}", "1:7 `url` must begin with http"),
            ("http", "{url: 'http://user@example.org/'}", "1:7 `url` must not carry a user name"),
            ("http", "{url: 'http://a/', method: BREW}", "1:28 `method` must be one of"),
            ("http", "{url: 'http://a/', headers: {'a b': c}}", "1:37 `headers.a b` is not the name"),
            (
                "http",
                "{url: 'http://a/', headers: {idempotency-key: c}}",
                "1:47 `headers.idempotency-key` is set",
            ),
            ("http", "{url: 'http://a/', timeout: 1h}", "1:29 `timeout` must be from 1ms to 15m"),
            ("wait_for_signal", "{name: ''}", "1:8 `name` "),
            ("wait_for_signal", "{name: \"a\\eb\"}", "1:8 `name` "),
            ("wait_for_signal", "{name: ' a'}", "1:8 `name` "),
            ("child_job", "{handler: ''}", "1:11 `handler` "),
            ("child_job", "{container: {image: 'a:b:c'}}", "1:21 `container.image` \"a:b:c\" is not"),
            ("child_job", "{container: {imag: a}}", "1:13 `container` unknown field `imag`"),
            (
                "child_job",
                "{container: {image: a, memory_bytes: 1024}}",
                "1:38 `container.memory_bytes` must be",
            ),
            ("child_job", "{heartbeat: {url: 'file:///etc/passwd'}}", "1:19 `heartbeat.url` must begin"),
        ] {
            let found = told(op, inputs);
            assert_eq!(found.len(), 1, "{op} {inputs}: {found:?}");
            assert!(found[0].starts_with(says), "{op} {inputs}: {found:?}");
        }
    }
}
