//! `child_job`: what to submit, out of the input of its node.

use leasehold_actors::domain::{JobDefinition, JobKind, Namespace, NewJob};

use super::exact::{Json, raw_member};

/// A child to submit.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) job: NewJob,
    /// Cancelled when the parent ends without success.
    pub(super) cancel_with_parent: bool,
}

/// Reads `{handler | workflow | container | heartbeat, payload, priority, on_parent_end}`.
pub(super) fn child_of(namespace: &Namespace, input: &str) -> Result<Child, String> {
    let Ok(Json::Object(mut members)) = Json::parse(input) else {
        return Err("its input is no object".to_owned());
    };
    // What is nothing was left out, as the grammar has it.
    members.retain(|_, value| *value != Json::Null);
    let name = |key: &str| match members.get(key) {
        Some(Json::String(name)) => Ok(name.clone()),
        _ => Err(format!("`{key}` must be a name")),
    };
    let of = |kind: JobKind, key: &str| {
        let text = members.get(key).map(ToString::to_string).unwrap_or_default();
        JobDefinition::from_json(kind, &text).map(NewJob::ad_hoc).map_err(|error| format!("`{key}`: {error}"))
    };
    let kinds = ["handler", "workflow", "container", "heartbeat"];
    let given: Vec<&str> = kinds.into_iter().filter(|key| members.contains_key(*key)).collect();
    let mut job = match given.as_slice() {
        ["handler"] => NewJob::ad_hoc(JobDefinition::Handler { name: name("handler")? }),
        ["workflow"] => NewJob::of_workflow(name("workflow")?),
        ["container"] => of(JobKind::Container, "container")?,
        ["heartbeat"] => of(JobKind::Heartbeat, "heartbeat")?,
        _ => return Err(format!("give exactly one of {}", kinds.join(", "))),
    };
    job.namespace = namespace.clone();
    if let Some(payload) = raw_member(input, "payload") {
        payload.clone_into(&mut job.payload);
    }
    if let Some(priority) = members.get("priority") {
        let priority = priority.to_string().parse().ok().filter(|n| (-100..=100).contains(n));
        job.priority = priority.ok_or("`priority` is a whole number from -100 to 100")?;
    }
    let cancel_with_parent = match members.get("on_parent_end") {
        None => true,
        Some(Json::String(word)) if word == "cancel" => true,
        Some(Json::String(word)) if word == "leave" => false,
        Some(_) => return Err("`on_parent_end` is `cancel` or `leave`".to_owned()),
    };
    Ok(Child { job, cancel_with_parent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::grammar::ops::check_given;

    #[test]
    fn a_child_is_one_job_with_its_payload_as_it_stands() {
        let input = r#"{"handler":"resize","payload":{"n": 1.50},"on_parent_end":"leave"}"#;
        let child = child_of(&Namespace::default(), input).expect("a child");
        assert_eq!(child.job.payload, r#"{"n": 1.50}"#);
        assert!(!child.cancel_with_parent);
        let input = r#"{"handler":"resize","payload":null,"priority":null,"on_parent_end":null}"#;
        let child = child_of(&Namespace::default(), input).expect("what is nothing was left out");
        assert_eq!((child.job.payload.as_str(), child.job.priority), ("null", 0));
        assert!(child.cancel_with_parent);
        for bad in [
            "[]",
            "{}",
            r#"{"handler":"a","workflow":"b"}"#,
            r#"{"handler":1}"#,
            r#"{"handler":"a","priority":101}"#,
            r#"{"handler":"a","on_parent_end":"keep"}"#,
            r#"{"handler":"a","other":1}"#,
            r#"{"container":{"imag":"x"}}"#,
        ] {
            let fits = check_given("child_job", &Json::parse(bad).expect("JSON"));
            fits.and_then(|()| child_of(&Namespace::default(), bad)).expect_err(bad);
        }
    }
}
