//! The op `container`: a container on a runtime node, for one task.
//!
//! The node is taken when the task starts and given back when its container is gone. Without one the task has not
//! failed, and has not begun: the job goes on later ([`TaskContext::wait_for_a_node`]).

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{ContainerSpec, FailureKind, PullPolicy, TaskKey},
    ports::{NodeNeeds, Placement, TaskOccurrence, TaskPlace, TaskPlaced, recipe::JsonText},
    runtime_node_actor::task::{TaskEnded, TaskNodes, TaskOutput, TaskRun},
    work::{LeaseCallError, LeaseContext, PartStop, StopReason, WorkOutcome},
};
use serde::Deserialize;

use super::{OUTPUT_LIMIT, bounded, decode, duration, failed, masked, secrets::Secrets, task_key};
use crate::{
    recipe::op::{Op, Task, TaskError, TaskStop},
    submission,
};

/// How long a container that is stopped for a sibling or a node's timeout may take: less than its session waits for it.
const STOP_BUDGET: Duration = Duration::from_secs(4);
/// Beside its stop grace, what a container that took too long is given for its output and its removal.
const TIDY: Duration = Duration::from_secs(5);
/// Between two calls to the store without an answer.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);
/// The longest that giving a node back is tried; the end of the lease does it too.
const GIVE_BACK: Duration = Duration::from_secs(10);

/// Runs containers.
pub(super) struct ContainerOp {
    pub(super) nodes: Arc<TaskNodes>,
    pub(super) secrets: Arc<Secrets>,
}

impl fmt::Debug for ContainerOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContainerOp")
    }
}

/// As the definition of a CONTAINER job. Its limits come from what the task needs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    image: String,
    #[serde(default, deserialize_with = "super::or_default")]
    command: Vec<String>,
    entrypoint: Option<Vec<String>>,
    #[serde(default, deserialize_with = "super::or_default")]
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    user: Option<String>,
    pids_limit: Option<i64>,
    network: Option<String>,
    stop_grace_ms: Option<i64>,
    #[serde(default, deserialize_with = "super::or_default")]
    pull: PullPolicy,
    log_quota_bytes: Option<i64>,
    timeout: Option<String>,
}

/// Why a container was told to end before it did.
#[derive(Clone, Copy)]
enum Why {
    TimedOut,
    Told(TaskStop),
}

#[async_trait]
impl Op for ContainerOp {
    async fn run(&self, task: Task) -> Result<JsonText, TaskError> {
        let input: Input = decode(&task, &self.secrets)?;
        let limit = input.timeout.as_deref().map(duration).transpose()?;
        let spec = spec(input, &task).map_err(|error| masked(error, &self.secrets))?;
        let Some(lease) = task.context.lease() else {
            return Err(TaskError::system("no_lease", "a container runs under a lease only"));
        };
        let key = task_key(&task.path);
        let placement = self.place(&task, lease, &key, spec.log_quota_bytes).await?;
        let (why, ended) = self.drive(&task, lease, &key, placement, spec, limit).await;
        give_back(lease, &key).await;
        conclude(&self.secrets, why, limit, ended)
    }
}

impl ContainerOp {
    async fn place(
        &self,
        task: &Task,
        lease: &LeaseContext,
        key: &TaskKey,
        log_quota_bytes: Option<i64>,
    ) -> Result<Placement, TaskError> {
        let place = TaskPlace {
            task: key.clone(),
            path: task.path.clone(),
            needs: NodeNeeds {
                cpu_millis: task.needs.cpu_millis,
                memory_bytes: task.needs.memory_bytes,
                platform: task.needs.platform.clone(),
            },
            occurrence: TaskOccurrence { log_quota_bytes, ..task.context.occurrence().clone() },
        };
        let stopped = || TaskError::system("stopped", "it had to end before it had a runtime node");
        let mut wait = FIRST_RETRY;
        loop {
            if !task.context.is_live() {
                return Err(stopped());
            }
            match lease.place_task(&place).await {
                Ok(TaskPlaced::Placed(placement)) => return Ok(placement),
                Ok(TaskPlaced::NoNode { retry_at, retry_in }) => {
                    task.context.wait_for_a_node(retry_at, retry_in);
                    return Err(TaskError::system("no_runtime_node", "no runtime node has room for it"));
                }
                Ok(TaskPlaced::Leftover) => {
                    return Err(TaskError::system(
                        "leftover_container",
                        "a container of an earlier lease is recorded for this task; report it",
                    ));
                }
                Ok(TaskPlaced::NotLive) | Err(LeaseCallError::Lost) => return Err(stopped()),
                Err(LeaseCallError::Store(error)) if error.is_retryable() => {
                    tracing::warn!(job = %task.job, path = task.path, %error, "not placed, asking again");
                    tokio::select! {
                        () = tokio::time::sleep(wait.min(lease.remaining())) => {}
                        _ = task.context.cancelled() => {}
                    }
                    wait = (wait * 2).min(LAST_RETRY);
                }
                Err(LeaseCallError::Store(error)) => {
                    return Err(TaskError::system("not_placed", error.to_string()));
                }
            }
        }
    }

    /// Runs the container to its end, and stops it when its time is over.
    async fn drive(
        &self,
        task: &Task,
        lease: &LeaseContext,
        key: &TaskKey,
        placement: Placement,
        spec: ContainerSpec,
        limit: Option<Duration>,
    ) -> (Option<Why>, TaskEnded) {
        let part = StopOnDrop(PartStop::default());
        let grace = spec.stop_grace_ms.unwrap_or(ContainerSpec::DEFAULT_STOP_GRACE_MS);
        let grace = Duration::from_millis(u64::try_from(grace).unwrap_or(0));
        let run = TaskRun {
            lease: lease.for_part(part.0.clone()),
            task: key.clone(),
            path: task.path.clone(),
            placement,
            spec,
            env: vec![
                ("LEASEHOLD_TASK_KEY".to_owned(), task.idempotency_key.clone()),
                ("LEASEHOLD_TASK".to_owned(), task.path.clone()),
                ("LEASEHOLD_ATTEMPT".to_owned(), task.attempt.to_string()),
            ],
            longest_line: OUTPUT_LIMIT,
            redact: self.secrets.redact(),
        };
        let mut running = std::pin::pin!(self.nodes.run(run));
        let overdue = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let mut overdue = std::pin::pin!(overdue);
        let mut why = None;
        loop {
            tokio::select! {
                biased;
                ended = &mut running => return (why, ended),
                stop = task.context.cancelled(), if why.is_none() => {
                    why = Some(Why::Told(stop));
                    // What stops the whole job is told to the run by the lease itself.
                    if !matches!(stop, TaskStop::Job(_)) {
                        part.0.stop(StopReason::Canceled, STOP_BUDGET);
                    }
                }
                () = &mut overdue, if why.is_none() => {
                    why = Some(Why::TimedOut);
                    part.0.stop(StopReason::TimedOut, grace + TIDY);
                }
            }
        }
    }
}

/// What a container came to, as the op's result. With `limit`, the time that it was given.
fn conclude(
    secrets: &Secrets,
    why: Option<Why>,
    limit: Option<Duration>,
    ended: TaskEnded,
) -> Result<JsonText, TaskError> {
    let TaskEnded { outcome, output } = ended;
    let result = match outcome {
        WorkOutcome::Completed { .. } => result(secrets, &output),
        WorkOutcome::Failed(failure) | WorkOutcome::FailedForGood(failure) => {
            let mut error = failed(failure);
            let said = super::last_words(secrets, &output.errors, &output.last_line.text);
            if error.kind == FailureKind::User && error.exit_code.is_some() && !said.is_empty() {
                error.message = format!("{}: {said}", error.message);
            }
            Err(error)
        }
        WorkOutcome::Stopped | WorkOutcome::Abandoned | WorkOutcome::GoesOn { .. } => Err(match why {
            Some(Why::TimedOut) => {
                let limit = humantime::format_duration(limit.unwrap_or(Duration::ZERO));
                TaskError::timeout(format!("the container did not end within {limit}"))
            }
            Some(Why::Told(why)) => TaskError::system("stopped", format!("the container was ended: {why:?}")),
            None => TaskError::system("stopped", "the container was ended although nobody asked"),
        }),
    };
    result.map_err(|error| masked(error, secrets))
}

/// What a container came to that was found when its job was taken over.
pub(in crate::recipe) fn conclude_found(secrets: &Secrets, ended: TaskEnded) -> Result<JsonText, TaskError> {
    conclude(secrets, None, None, ended)
}

fn result(secrets: &Secrets, output: &TaskOutput) -> Result<JsonText, TaskError> {
    if !output.complete {
        return Err(TaskError::system(
            "output_lost",
            "the container ended with 0, but its output could not be read to its end, so its result is not known",
        ));
    }
    let line = &output.last_line;
    if line.length > OUTPUT_LIMIT {
        return Err(super::too_large(line.length));
    }
    let line = std::str::from_utf8(&line.text).map(str::trim).unwrap_or_default();
    let is_json = serde_json::from_str::<&serde_json::value::RawValue>(line).is_ok();
    bounded(if is_json { line } else { "null" }, secrets)
}

/// Ends the container when nobody waits for it any more.
struct StopOnDrop(PartStop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop(StopReason::Canceled, STOP_BUDGET);
    }
}

fn spec(input: Input, task: &Task) -> Result<ContainerSpec, TaskError> {
    let spec = ContainerSpec {
        image: input.image,
        command: input.command,
        entrypoint: input.entrypoint,
        env: input.env,
        workdir: input.workdir,
        user: input.user,
        memory_bytes: task.needs.memory_bytes,
        cpu_millis: task.needs.cpu_millis,
        pids_limit: input.pids_limit,
        network: input.network,
        stop_grace_ms: input.stop_grace_ms,
        pull: input.pull,
        log_quota_bytes: input.log_quota_bytes,
        on_orphan: Default::default(),
    };
    submission::container::check(&spec)
        .map_err(|error| TaskError::user("bad_input", format!("container: {error}")))?;
    Ok(spec)
}

/// Nothing of the task runs any more. The end of the lease gives the node back too, so this need not succeed.
async fn give_back(lease: &LeaseContext, key: &TaskKey) {
    let trying = async {
        let mut wait = FIRST_RETRY;
        while let Err(LeaseCallError::Store(error)) = lease.unplace_task(key).await {
            tracing::debug!(job = %lease.authority().job, %error, "the task's node is not given back, asking again");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_RETRY);
        }
    };
    if tokio::time::timeout(GIVE_BACK, trying).await.is_err() {
        tracing::warn!(job = %lease.authority().job, "the task's node is given back with the lease");
    }
}
