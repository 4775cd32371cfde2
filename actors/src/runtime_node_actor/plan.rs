//! Plan: what is to be created for a grant. Pure, so that a repeat plans the same container (D10).

use uuid::Uuid;

use crate::{
    domain::{ContainerSpec, Epoch, InvalidDefinition, JobDefinition, NodeId, TaskKey},
    ports::{ContainerPlan, Grant},
};

/// How many characters of a task's key its container's name has.
const KEY_IN_NAME: usize = 16;

/// The container of a grant on a node.
///
/// # Errors
/// [`InvalidDefinition`] when the stored definition is no container's.
pub fn plan(fleet: Uuid, node: &NodeId, grant: &Grant) -> Result<ContainerPlan, InvalidDefinition> {
    plan_of_claim(fleet, node, grant, grant.authority.epoch)
}

/// The container of an earlier claim, whose lease was taken over: a takeover has an epoch of its own, its container
/// keeps that of the claim.
///
/// # Errors
/// As [`plan`].
pub fn plan_of_claim(
    fleet: Uuid,
    node: &NodeId,
    grant: &Grant,
    claim: Epoch,
) -> Result<ContainerPlan, InvalidDefinition> {
    let JobDefinition::Container(spec) = JobDefinition::from_json(grant.kind, &grant.definition)? else {
        return Err(InvalidDefinition::new("kind", format!("a {} job has no container", grant.kind)));
    };
    Ok(ContainerPlan {
        name: container_name(fleet, grant, claim),
        labels: labels(fleet, node, grant, claim, None),
        env: environment(grant, claim),
        spec,
    })
}

/// The container of one task of a recipe, under the claim with this epoch. `env` is what its program is told beside what
/// every program is told.
#[must_use]
pub fn plan_of_task(
    fleet: Uuid,
    node: &NodeId,
    grant: &Grant,
    claim: Epoch,
    (task, path): (&TaskKey, &str),
    spec: ContainerSpec,
    env: Vec<(String, String)>,
) -> ContainerPlan {
    let key: String = task.as_str().chars().take(KEY_IN_NAME).collect();
    let mut labels = labels(fleet, node, grant, claim, Some(task));
    // For people.
    labels.push(("leasehold.path".to_owned(), path.to_owned()));
    let mut told = environment(grant, claim);
    told.retain(|(name, _)| env.iter().all(|(other, _)| other != name));
    told.extend(env);
    ContainerPlan { name: format!("{}-{key}", container_name(fleet, grant, claim)), labels, env: told, spec }
}

/// One name for each claim: a next attempt has another epoch, so it never meets the old one.
fn container_name(fleet: Uuid, grant: &Grant, claim: Epoch) -> String {
    let fleet = &fleet.simple().to_string()[..8];
    format!("leasehold-{fleet}-{}-{claim}", grant.authority.job)
}

/// What a container is found by, and told from foreign ones.
fn labels(
    fleet: Uuid,
    node: &NodeId,
    grant: &Grant,
    claim: Epoch,
    task: Option<&TaskKey>,
) -> Vec<(String, String)> {
    [
        ("leasehold.fleet", fleet.to_string()),
        ("leasehold.job", grant.authority.job.to_string()),
        ("leasehold.epoch", claim.to_string()),
        ("leasehold.namespace", grant.authority.owner.namespace.to_string()),
        ("leasehold.node", node.to_string()),
        // The key of a recipe's task; a CONTAINER job has none.
        ("leasehold.task", task.map(ToString::to_string).unwrap_or_default()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// What the program may tell the outside, which then can refuse an older writer by the epoch.
fn environment(grant: &Grant, claim: Epoch) -> Vec<(String, String)> {
    let mut env = vec![
        ("LEASEHOLD_JOB_ID".to_owned(), grant.authority.job.to_string()),
        ("LEASEHOLD_FENCING_EPOCH".to_owned(), claim.to_string()),
        ("LEASEHOLD_ATTEMPT".to_owned(), grant.attempt.to_string()),
        ("LEASEHOLD_NAMESPACE".to_owned(), grant.authority.owner.namespace.to_string()),
    ];
    if let Some(parent) = &grant.trace_parent {
        env.push(("TRACEPARENT".to_owned(), parent.clone()));
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{Epoch, JobId, JobKind},
        runtime_node_actor::tests::bed::grant,
    };

    const FLEET: Uuid = Uuid::from_u128(0x8d3a_5f01_0000_0000_0000_0000_0000_0001);

    fn planned(change: impl FnOnce(&mut Grant)) -> Result<ContainerPlan, InvalidDefinition> {
        let mut grant = grant();
        grant.authority.job = JobId(42);
        grant.authority.epoch = Epoch((3 << 40) + 7);
        change(&mut grant);
        plan(FLEET, &NodeId::new("n-1").expect("a plain name"), &grant)
    }

    #[test]
    fn a_name_tells_fleet_job_and_epoch() {
        let plan = planned(|_| {}).expect("a container");
        assert_eq!(plan.name, "leasehold-8d3a5f01-42-3298534883335");
        assert_eq!(planned(|_| {}).expect("a container"), plan, "a repeat plans the same");
        let next = planned(|grant| grant.authority.epoch = Epoch((3 << 40) + 8)).expect("a container");
        assert_ne!(next.name, plan.name);
    }

    /// What a recoverer looks for is what the claim's holder created.
    #[test]
    fn a_takeover_plans_the_container_of_its_claim() {
        let (node, mut grant) = (NodeId::new("n-1").expect("a plain name"), grant());
        let claimed = plan(FLEET, &node, &grant).expect("a container");
        let claim = grant.authority.epoch;
        grant.authority.epoch = Epoch(claim.0 + 1);
        assert_eq!(plan_of_claim(FLEET, &node, &grant, claim).expect("a container"), claimed);
    }

    #[test]
    fn each_task_of_a_recipe_has_a_container_of_its_own() {
        let node = NodeId::new("n-1").expect("a plain name");
        let key = |text: &str| TaskKey::new(text).expect("a plain key");
        let (one, two) = (key("0123456789abcdef0123"), key("fedcba98765432100123"));
        let planned = |task: &TaskKey, claim| {
            let env = vec![("LEASEHOLD_ATTEMPT".to_owned(), "7".to_owned())];
            plan_of_task(
                FLEET,
                &node,
                &grant(),
                Epoch(claim),
                (task, "build/one"),
                ContainerSpec::default(),
                env,
            )
        };
        let plan = planned(&one, 3);
        assert!(plan.name.ends_with("-3-0123456789abcdef"), "{}", plan.name);
        assert_ne!(plan.name, planned(&two, 3).name);
        assert_ne!(plan.name, planned(&one, 4).name);
        assert!(plan.labels.contains(&("leasehold.task".to_owned(), one.to_string())));
        assert!(plan.labels.contains(&("leasehold.path".to_owned(), "build/one".to_owned())));
        let attempts: Vec<_> = plan.env.iter().filter(|(name, _)| name == "LEASEHOLD_ATTEMPT").collect();
        assert_eq!(attempts, [&("LEASEHOLD_ATTEMPT".to_owned(), "7".to_owned())]);
    }

    #[test]
    fn labels_tell_all_that_cleanup_needs() {
        let plan = planned(|_| {}).expect("a container");
        let expected = [
            ("leasehold.fleet", "8d3a5f01-0000-0000-0000-000000000001"),
            ("leasehold.job", "42"),
            ("leasehold.epoch", "3298534883335"),
            ("leasehold.namespace", "default"),
            ("leasehold.node", "n-1"),
            ("leasehold.task", ""),
        ];
        let told: Vec<_> = plan.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn the_program_is_told_its_epoch_and_trace() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for (trace, expected) in [(None, 4), (Some(parent.to_owned()), 5)] {
            let plan = planned(|grant| {
                grant.attempt = 2;
                grant.trace_parent = trace.clone();
            });
            let env = plan.expect("a container").env;
            assert_eq!(env.len(), expected);
            for (key, value) in [
                ("LEASEHOLD_JOB_ID", "42"),
                ("LEASEHOLD_FENCING_EPOCH", "3298534883335"),
                ("LEASEHOLD_ATTEMPT", "2"),
                ("LEASEHOLD_NAMESPACE", "default"),
            ] {
                assert!(env.contains(&(key.to_owned(), value.to_owned())), "{key}");
            }
            assert_eq!(env.iter().find(|(key, _)| key == "TRACEPARENT").map(|(_, v)| v.clone()), trace);
        }
    }

    #[test]
    fn what_is_no_container_is_refused() {
        for (kind, definition) in [
            (JobKind::Container, r#"{"image":"a","unknown":1}"#),
            (JobKind::Container, "{"),
            (JobKind::Handler, r#"{"handler":"work"}"#),
        ] {
            let planned = planned(|grant| {
                grant.kind = kind;
                grant.definition = definition.into();
            });
            assert!(planned.is_err(), "{definition}");
        }
    }
}
