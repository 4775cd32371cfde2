//! What is asked for: recipes that wait for an environment which no living worker has, and a node that could be it.

use leasehold::{
    postgres::{
        PgStore,
        execution_view::{ExecutionView, HintQuality, NeedsSource},
        nodes::{NodeRow, NodeState},
        read::{JobFilter, JobRow},
    },
    protocol::{
        domain::{
            JobKind, JobState, Namespace,
            execution::{Allocation, Mismatch, Requirements, compare},
        },
        error::StoreError,
        ports::{DispatchedJob, LeaseStore as _},
    },
};

/// Jobs that one look makes QUEUED, and looks at.
const AT_ONCE: u32 = 100;

/// A job that needs a worker of its own.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    /// It, as it was seen: a claim of anything else is refused.
    pub(crate) job: DispatchedJob,
    /// What its next task needs.
    pub(crate) needs: Requirements,
}

/// The jobs whose last word is a handoff, oldest first, whose needs no living worker satisfies. A stale hint is left
/// alone: any worker may try such a job.
pub(crate) async fn look(store: &PgStore, namespace: &Namespace) -> Result<Vec<Demand>, StoreError> {
    // Whoever claims must not depend on somebody else's making due jobs ready.
    store.dispatch(namespace, AT_ONCE).await?;
    let filter = JobFilter {
        states: vec![JobState::Queued],
        kind: Some(JobKind::Recipe),
        oldest_first: true,
        limit: AT_ONCE,
        ..JobFilter::all(namespace.clone())
    };
    let waiting: Vec<Demand> = store.list_jobs(&filter).await?.items.into_iter().filter_map(demand).collect();
    if waiting.is_empty() {
        return Ok(waiting);
    }
    let alive: Vec<Allocation> = store
        .worker_list(namespace)
        .await?
        .into_iter()
        .filter(|worker| worker.alive)
        .filter_map(|worker| {
            let status: serde_json::Value = serde_json::from_str(worker.status.get()).ok()?;
            serde_json::from_value(status.get("allocation")?.clone()).ok()
        })
        .collect();
    let nobody_has = |demand: &Demand| alive.iter().all(|has| !compare(&demand.needs, has).is_empty());
    Ok(waiting.into_iter().filter(nobody_has).collect())
}

fn demand(row: JobRow) -> Option<Demand> {
    match row.execution? {
        ExecutionView::Specified { source: NeedsSource::Handoff, hint: HintQuality::Exact, requirements } => {
            Some(Demand {
                job: DispatchedJob {
                    job: row.id,
                    generation: row.generation,
                    dispatch_attempt: row.dispatch_attempt,
                },
                needs: requirements,
            })
        }
        _ => None,
    }
}

/// A fresh READY node whose engine is large enough and of the right platform; the one with the fewest slots in use. Or what
/// the nearest one lacks.
pub(crate) fn node_for<'n>(nodes: &'n [NodeRow], needs: &Requirements) -> Result<&'n NodeRow, String> {
    // What the engine as a whole has; the image is fetched, and scratch space is not ours to promise.
    let of_engine = Requirements { image: None, ephemeral_storage_bytes: None, ..needs.clone() };
    let usable = nodes.iter().filter(|node| node.state == NodeState::Ready && node.fresh);
    let mut lacking = "there is no fresh READY node".to_owned();
    let mut fitting = Vec::new();
    for node in usable {
        let mismatches = compare(&of_engine, &has(node));
        if mismatches.is_empty() {
            fitting.push(node);
        } else {
            lacking = format!("node {} does not have it: {}", node.id, words(&mismatches));
        }
    }
    fitting.into_iter().min_by_key(|node| node.slots_used).ok_or(lacking)
}

fn has(node: &NodeRow) -> Allocation {
    Allocation {
        cpu_millis: Some(node.cpu_millis),
        memory_bytes: Some(node.memory_bytes),
        platform: format!("{}/{}", node.os, node.architecture).parse().ok(),
        ..Allocation::default()
    }
}

/// What does not fit, on one line.
pub(crate) fn words(mismatches: &[Mismatch]) -> String {
    mismatches.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
