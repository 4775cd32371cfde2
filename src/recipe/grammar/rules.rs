//! What the inputs of built-in ops must be beyond their kinds. What an op would refuse whenever it ran is refused when its
//! recipe is checked, with its place: by the same rules as definitions of jobs. What a template gives is looked at when it
//! has.

use leasehold_actors::domain::{ContainerSpec, HeartbeatSpec, InvalidDefinition, JobDefinition, JobKind};

use crate::{
    recipe::{
        mistake::Place,
        template::has_template,
        yaml::{Key, Value, Yaml},
    },
    submission,
};

/// Where an input breaks a rule, and which.
type Broken = (Place, String);

/// Checks the inputs of an op as a recipe has them. Their kinds fit.
pub(super) fn check(op: &str, inputs: &Yaml) -> Result<(), Broken> {
    check_known(op, &known(inputs)).map_err(|refused| {
        (place_of(inputs, &refused.field), format!("`{}` {}", refused.field, refused.reason))
    })
}

/// Checks what only the session would look at when it is given: ops look at their inputs themselves.
pub(super) fn check_given(op: &str, inputs: &Yaml) -> Result<(), String> {
    if op != "wait_for_signal" {
        return Ok(());
    }
    check_known(op, inputs).map_err(|refused| format!("`{}` {}", refused.field, refused.reason))
}

fn check_known(op: &str, inputs: &Yaml) -> Result<(), InvalidDefinition> {
    match op {
        "command" => command(inputs),
        "container" => container(inputs),
        "http" => http(inputs),
        "wait_for_signal" => text(inputs, "name").map_or(Ok(()), signal_name),
        "child_job" => child_job(inputs),
        _ => Ok(()),
    }
}

/// The rules of a signal's name: what is waited for must be something that can be sent.
fn signal_name(name: &str) -> Result<(), InvalidDefinition> {
    submission::text_name("name", name)
}

fn command(inputs: &Yaml) -> Result<(), InvalidDefinition> {
    if let Some(argv) = inputs.get("argv") {
        if argv.elements().first().is_none_or(|program| program.text() == Some("")) {
            return Err(InvalidDefinition::new("argv", "must name a program: [program, argument, …]"));
        }
        for (n, argument) in argv.elements().iter().enumerate() {
            submission::no_nul(&format!("argv[{n}]"), argument.text().unwrap_or_default())?;
        }
    }
    for (name, value) in inputs.get("env").map_or(&[][..], Yaml::members) {
        submission::container::environment(&name.name, value.text().unwrap_or_default())?;
    }
    if let Some(Value::Number(bytes)) = inputs.get("log_quota_bytes").map(|quota| &quota.value) {
        submission::container::log_quota(bytes.parse().ok())?;
    }
    text(inputs, "workdir").map_or(Ok(()), |folder| submission::no_nul("workdir", folder))
}

fn container(inputs: &Yaml) -> Result<(), InvalidDefinition> {
    // The container's limits are no inputs.
    let mut spec: ContainerSpec = read(&without(inputs, "timeout"))?;
    if inputs.get("image").is_none() {
        "given-later".clone_into(&mut spec.image);
    }
    submission::container::check(&spec)
}

fn http(inputs: &Yaml) -> Result<(), InvalidDefinition> {
    let method = text(inputs, "method").map(str::to_ascii_uppercase);
    let timeout = text(inputs, "timeout").and_then(|text| humantime::parse_duration(text).ok());
    let mut plain = without(&without(&without(inputs, "timeout"), "method"), "body");
    if let (true, Value::Map(members)) = (inputs.get("url").is_none(), &mut plain.value) {
        let key = Key { place: inputs.place, name: "url".to_owned() };
        let url = Value::Text("http://given.later/".to_owned());
        members.push((key, Yaml { place: inputs.place, value: url }));
    }
    let mut spec: HeartbeatSpec = read(&plain)?;
    if let Some(method) = method {
        spec.method = method;
    }
    if let Some(timeout) = timeout {
        spec.timeout_ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
    }
    if let Some(own) = spec.headers.keys().find(|name| name.eq_ignore_ascii_case("Idempotency-Key")) {
        return Err(InvalidDefinition::new(format!("headers.{own}"), "is set by the op itself"));
    }
    submission::heartbeat::check(&spec).map_err(|refused| match refused.field.as_str() {
        "timeout_ms" => InvalidDefinition::new("timeout", "must be from 1ms to 15m"),
        _ => refused,
    })
}

fn child_job(inputs: &Yaml) -> Result<(), InvalidDefinition> {
    for key in ["handler", "workflow"] {
        text(inputs, key).map_or(Ok(()), |name| submission::text_name(key, name))?;
    }
    for (key, kind) in [("container", JobKind::Container), ("heartbeat", JobKind::Heartbeat)] {
        let Some(definition) = inputs.get(key) else { continue };
        let below = |refused: InvalidDefinition| match refused.field.as_str() {
            "definition" => InvalidDefinition::new(key, refused.reason),
            field => InvalidDefinition::new(format!("{key}.{field}"), refused.reason),
        };
        let definition = JobDefinition::from_json(kind, &definition.to_json().to_string()).map_err(below)?;
        submission::validate_definition(&definition).map_err(below)?;
    }
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(inputs: &Yaml) -> Result<T, InvalidDefinition> {
    serde_json::from_str(&inputs.to_json().to_string())
        .map_err(|error| InvalidDefinition::new("inputs", format!("do not fit: {error}")))
}

/// The inputs without those that templates give, and without what is nothing. In a list or a map of texts a word stands
/// for a template; a definition with a template anywhere in it is not known.
fn known(inputs: &Yaml) -> Yaml {
    let Value::Map(members) = &inputs.value else { return inputs.clone() };
    let word = |value: &Yaml| {
        let mut value = value.clone();
        if value.text().is_some_and(has_template) {
            value.value = Value::Text("given-later".to_owned());
        }
        value
    };
    let of = |value: &Yaml| {
        let known = match &value.value {
            Value::Null => return None,
            Value::Text(text) if has_template(text) => return None,
            Value::List(elements) if elements.iter().all(|element| element.text().is_some()) => {
                Value::List(elements.iter().map(word).collect())
            }
            Value::Map(members) if members.iter().all(|(_, value)| value.text().is_some()) => {
                Value::Map(members.iter().map(|(key, value)| (key.clone(), word(value))).collect())
            }
            _ if holds_template(value) => return None,
            other => other.clone(),
        };
        Some(Yaml { place: value.place, value: known })
    };
    let members = members.iter().filter_map(|(key, value)| Some((key.clone(), of(value)?))).collect();
    Yaml { place: inputs.place, value: Value::Map(members) }
}

fn holds_template(yaml: &Yaml) -> bool {
    yaml.text().is_some_and(has_template)
        || yaml.elements().iter().any(holds_template)
        || yaml.members().iter().any(|(_, value)| holds_template(value))
}

fn without(inputs: &Yaml, key: &str) -> Yaml {
    let members = inputs.members().iter().filter(|(found, _)| found.name != key).cloned().collect();
    Yaml { place: inputs.place, value: Value::Map(members) }
}

fn text<'y>(inputs: &'y Yaml, key: &str) -> Option<&'y str> {
    inputs.get(key).and_then(Yaml::text)
}

/// The place of what a rule calls `env.HOME` or `command[0]`; of what it stands in, where that is not found.
fn place_of(inputs: &Yaml, field: &str) -> Place {
    let mut place = inputs.place;
    let mut at = inputs;
    let mut rest = field;
    while !rest.is_empty() {
        // A name may hold anything, also a point.
        let whole = at.members().iter().find(|(key, _)| key.name == rest);
        let end = if whole.is_some() { rest.len() } else { rest.find(['.', '[']).unwrap_or(rest.len()) };
        let (part, after) = rest.split_at(end);
        let found = match part.strip_suffix(']') {
            Some(index) => index.parse().ok().and_then(|index: usize| at.elements().get(index)),
            None => at.get(part),
        };
        let Some(found) = found else { break };
        (at, place) = (found, found.place);
        rest = after.trim_start_matches(['.', '[']);
    }
    place
}
