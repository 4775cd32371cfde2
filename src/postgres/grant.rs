//! What a claim answers: grants read from rows, grants recalled by command id, and typed reasons for the rest.

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold_actors::{
    domain::{Epoch, JobId, JobKind, JobState, LeaseToken, NodeId, RetryPolicy, Route},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{Authority, ClaimRejection, Claimant, DispatchedJob, Grant, ListedAnswer, Placement},
};
use rand::RngCore;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    claim::{ClaimAsk, ClaimReply, Wish},
    error,
    pool::{Lane, Pools},
    sql_file::{Sql, sql},
};

static RECALL_CLAIM: Sql = sql!("recall_claim", [UUID, TEXT, TEXT, UUID]);
static CLAIM_REASONS: Sql = sql!("claim_reasons", [TEXT, INT8_ARRAY]);

/// Secrets for as many grants, 128 bits each from a cryptographic generator that the system seeds.
pub(super) fn tokens(count: usize) -> Vec<Uuid> {
    let mut bytes = vec![0; count * 16];
    rand::rng().fill_bytes(&mut bytes);
    bytes.chunks_exact(16).map(|chunk| Uuid::from_slice(chunk).expect("a chunk has 16 bytes")).collect()
}

/// Reads a grant from the columns that `claim.sql` and `recall_claim.sql` have in common, from `at` on.
pub(super) fn read(
    row: &Row,
    at: usize,
    owner: &Arc<Claimant>,
    lease_ms: i32,
) -> Result<Grant, Box<dyn std::error::Error + Send + Sync>> {
    // In the order of the columns.
    let mut at = at..;
    let mut next = move || at.next().unwrap_or(usize::MAX);
    let job = JobId(row.try_get(next())?);
    let token = LeaseToken::from_store(row.try_get(next())?);
    let epoch = Epoch(row.try_get(next())?);
    let kind: JobKind = row.try_get::<_, &str>(next())?.parse()?;
    let route = Route { kind, name: row.try_get(next())?, task: row.try_get(next())? };
    let workflow = row.try_get(next())?;
    let generation = row.try_get(next())?;
    let dispatch_attempt = row.try_get(next())?;
    let attempt = row.try_get(next())?;
    let definition = Arc::from(row.try_get::<_, &str>(next())?);
    let payload = Arc::from(row.try_get::<_, &str>(next())?);
    let timeout: Option<i64> = row.try_get(next())?;
    let retry = RetryPolicy {
        max_user: row.try_get(next())?,
        max_system: row.try_get(next())?,
        max_timeout: row.try_get(next())?,
        backoff_ms: row.try_get(next())?,
        backoff_cap_ms: row.try_get(next())?,
    };
    let trace_parent = row.try_get(next())?;
    let placement = match row.try_get::<_, Option<&str>>(next())? {
        None => None,
        Some(node) => Some(Placement {
            node: NodeId::new(node)?,
            incarnation: row.try_get(next())?,
            endpoint: row.try_get(next())?,
            engine_id: row.try_get(next())?,
        }),
    };
    Ok(Grant {
        authority: Authority { owner: (**owner).clone(), job, token, epoch },
        kind,
        route,
        workflow,
        generation,
        dispatch_attempt,
        attempt,
        lease: Duration::from_millis(u64::try_from(lease_ms)?),
        definition,
        payload,
        timeout: timeout.map(u64::try_from).transpose()?.map(Duration::from_millis),
        retry,
        trace_parent,
        placement,
    })
}

/// The recorded answer of a claim that has run before; none if it has not. Another request under its command id
/// is a conflict.
pub(super) async fn recall(pools: &Pools, ask: &ClaimAsk) -> Result<Option<ClaimReply>, StoreError> {
    let operation = ask.operation();
    let garbled = |e| error::garbled(operation, e);
    let owner = &ask.owner;
    let rows = pools
        .call(
            Lane::Leases,
            operation,
            &RECALL_CLAIM,
            &[&ask.command.0, &owner.namespace.as_str(), &owner.worker.as_str(), &owner.process.0],
        )
        .await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let same = first.try_get::<_, &str>(0).map_err(garbled)? == operation
        && first.try_get::<_, &str>(1).map_err(garbled)? == ask.hash()
        && first.try_get::<_, bool>(2).map_err(garbled)?;
    if !same {
        return Err(command_conflict(operation));
    }
    let mut live = Vec::new();
    for row in &rows {
        if row.try_get::<_, Option<i64>>(3).map_err(garbled)?.is_some() {
            let lease_ms = row.try_get("lease_ms").map_err(garbled)?;
            live.push(read(row, 3, owner, lease_ms).map_err(|e| error::garbled(operation, e))?);
        }
    }
    match &ask.wish {
        Wish::Open { .. } => {
            Ok(Some(live.into_iter().map(|grant| ListedAnswer::Granted(Box::new(grant))).collect()))
        }
        Wish::Listed { jobs } => recalled_list(pools, ask, jobs, live).await.map(Some),
    }
}

/// Another request stands under the command id.
pub(super) fn command_conflict(operation: &'static str) -> StoreError {
    StoreError {
        operation,
        kind: StoreErrorKind::CommandConflict,
        applied: Applied::No,
        message: "command_conflict: this command id was used for another request; use a new one".to_owned(),
    }
}

/// The grants that are still live, and for every other job where it stands now; never anything new.
async fn recalled_list(
    pools: &Pools,
    ask: &ClaimAsk,
    jobs: &[DispatchedJob],
    live: Vec<Grant>,
) -> Result<ClaimReply, StoreError> {
    let mut live: HashMap<i64, Grant> = live.into_iter().map(|g| (g.authority.job.0, g)).collect();
    let answers = jobs
        .iter()
        .map(|wanted| live.remove(&wanted.job.0).map(|grant| ListedAnswer::Granted(Box::new(grant))))
        .collect();
    let mut replies = with_reasons(pools, &[ask], vec![answers], &HashMap::new()).await?;
    Ok(replies.pop().unwrap_or_default())
}

/// Fills the gaps in the answers to listed claims with the reasons why. `held_back`: what these claims found
/// blocked, and by whom.
pub(super) async fn with_reasons(
    pools: &Pools,
    asks: &[&ClaimAsk],
    replies: Vec<Vec<Option<ListedAnswer>>>,
    held_back: &HashMap<i64, i64>,
) -> Result<Vec<ClaimReply>, StoreError> {
    let gaps = asks.iter().zip(&replies).flat_map(|(ask, answers)| {
        let gaps = ask.listed().iter().zip(answers).filter(|(_, answer)| answer.is_none());
        gaps.map(|(wanted, _)| wanted.job.0)
    });
    let mut jobs: Vec<i64> = gaps.collect();
    jobs.sort_unstable();
    jobs.dedup();
    let standing = if jobs.is_empty() { HashMap::new() } else { standings(pools, asks[0], &jobs).await? };
    let explain = |wanted: &DispatchedJob| {
        let reason = match (held_back.get(&wanted.job.0), standing.get(&wanted.job.0)) {
            (Some(blocker), _) => ClaimRejection::BlockedBy { job: JobId(*blocker) },
            (None, Some(standing)) => standing.reason(wanted),
            (None, None) => ClaimRejection::JobNotFound,
        };
        ListedAnswer::Rejected(wanted.job, reason)
    };
    Ok(asks
        .iter()
        .zip(replies)
        .map(|(ask, answers)| {
            let answers = ask.listed().iter().zip(answers);
            answers.map(|(wanted, answer)| answer.unwrap_or_else(|| explain(wanted))).collect()
        })
        .collect())
}

/// Where these jobs stand.
async fn standings(
    pools: &Pools,
    ask: &ClaimAsk,
    jobs: &[i64],
) -> Result<HashMap<i64, Standing>, StoreError> {
    let operation = ask.operation();
    let namespace = ask.owner.namespace.as_str();
    let rows = pools.call(Lane::Leases, operation, &CLAIM_REASONS, &[&namespace, &jobs]).await;
    // What was granted beside these is committed: that the reasons cannot be read must not hide it.
    let rows = rows.map_err(|e| StoreError { applied: Applied::Maybe, ..e })?;
    rows.iter().map(|row| Standing::read(row).map_err(|e| error::garbled(operation, e))).collect()
}

/// Where a listed job stands, as far as it matters for a claim.
struct Standing {
    state: Option<JobState>,
    generation: Option<i64>,
    dispatch_attempt: Option<i32>,
    workflow: Option<(String, i64)>,
    blocked_by: Option<i64>,
    no_node: bool,
}

impl Standing {
    fn read(row: &Row) -> Result<(i64, Self), Box<dyn std::error::Error + Send + Sync>> {
        let state: Option<&str> = row.try_get(1)?;
        let workflow_state: Option<String> = row.try_get(4)?;
        let workflow_generation: Option<i64> = row.try_get(5)?;
        let standing = Self {
            state: state.map(str::parse).transpose()?,
            generation: row.try_get(2)?,
            dispatch_attempt: row.try_get(3)?,
            workflow: workflow_state.zip(workflow_generation),
            blocked_by: row.try_get(6)?,
            no_node: row.try_get::<_, Option<bool>>(7)?.unwrap_or(false),
        };
        Ok((row.try_get(0)?, standing))
    }

    /// What the asker believes of the job is compared first, then whether it may run now. A job that fits in every
    /// respect was in somebody else's hands a moment ago.
    fn reason(&self, wanted: &DispatchedJob) -> ClaimRejection {
        match self.state {
            None => return ClaimRejection::JobNotFound,
            Some(JobState::Queued) => {}
            Some(status @ (JobState::Pending | JobState::Running)) => {
                return ClaimRejection::NotQueued { status };
            }
            Some(state) => return ClaimRejection::AlreadyEnded { state },
        }
        let in_force = self.workflow.as_ref().map(|(_, generation)| *generation).or(self.generation);
        if let Some(current) = self.dispatch_attempt
            && current != wanted.dispatch_attempt
        {
            return ClaimRejection::StaleDispatchAttempt { current };
        }
        if let Some(current) = in_force
            && self.generation != Some(wanted.generation)
        {
            return ClaimRejection::StaleGeneration { current };
        }
        match (&self.workflow, in_force) {
            (Some((state, _)), _) if state == "TERMINATED" => ClaimRejection::WorkflowTerminated,
            (Some((state, _)), _) if state == "PAUSED" => ClaimRejection::WorkflowPaused,
            (Some(_), Some(current)) if current != wanted.generation => {
                ClaimRejection::StaleGeneration { current }
            }
            _ => match self.blocked_by {
                Some(job) => ClaimRejection::BlockedBy { job: JobId(job) },
                None if self.no_node => ClaimRejection::NoRuntimeNode,
                None => ClaimRejection::Contended,
            },
        }
    }
}
