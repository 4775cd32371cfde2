//! Claim: who may be granted what, where a container goes, and what a repeat of a claim is told.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use super::{
    recipe::in_flight,
    refused,
    world::{Command, Lease, Place, World, delta},
};
use crate::{
    domain::{CommandId, Epoch, JobId, JobKind, JobState, LeaseToken, Namespace, NodeId, TaskKey},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{
        Authority, ClaimAnswer, ClaimRejection, Claimant, DispatchedJob, Grant, ListedAnswer, ListedClaim,
        OpenClaim, Placement,
    },
    testing::harness::WorkflowState,
};

/// `LEASE_DURATION_MIN` and `LEASE_DURATION_MAX`.
const DURATIONS: std::ops::RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_mins(15);

impl World {
    pub(super) fn claim_open(&mut self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        check_duration("claim", request.lease)?;
        let asked = format!("{:?} {:?} {} {:?}", request.owner, request.routes, request.limit, request.lease);
        if let Some(recorded) = self.recorded("claim", request.command, &asked)? {
            let grants = recorded.iter().filter_map(|(job, token)| self.regrant(request, *job, *token));
            return Ok(ClaimAnswer { grants: grants.collect() });
        }
        let mut queued: Vec<_> = self
            .rows
            .iter()
            .filter(|(_, row)| row.namespace == request.owner.namespace)
            .filter(|(_, row)| request.routes.contains(&row.route))
            .filter(|(id, row)| self.may_be_offered(**id, row, request.facts.as_deref()))
            .filter_map(|(id, row)| match &row.place {
                Place::Ready(ready) => Some((row.rank, ready.due_at, *id)),
                _ => None,
            })
            .collect();
        queued.sort_unstable();
        let mut grants = Vec::new();
        for (_, _, id) in queued {
            if grants.len() >= request.limit as usize {
                break;
            }
            if let Ok(grant) = self.try_claim(&request.owner, id, request.lease) {
                grants.push(grant);
            }
        }
        // An empty first answer needs no memory; an empty answer to a repeat must stay empty.
        if request.repeat || !grants.is_empty() {
            self.record(request.command, asked, recordable(&grants));
        }
        Ok(ClaimAnswer { grants })
    }

    pub(super) fn claim_listed(&mut self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        check_duration("claim", request.lease)?;
        let asked = format!("{:?} {:?} {:?}", request.owner, request.jobs, request.lease);
        if let Some(recorded) = self.recorded("claim", request.command, &asked)? {
            return Ok(self.replay_listed(request, &recorded));
        }
        // Where there is not enough for all of them, the most urgent is first, wherever it stands in the list.
        let mut order: Vec<usize> = (0..request.jobs.len()).collect();
        order.sort_by_key(|at| self.urgency(request.jobs[*at].job));
        let mut grants = Vec::new();
        let mut answers = vec![None; request.jobs.len()];
        for at in order {
            let wanted = &request.jobs[at];
            answers[at] = Some(match self.claim_one(&request.owner, wanted, request.lease) {
                Ok(grant) => {
                    grants.push(grant.clone());
                    ListedAnswer::Granted(Box::new(grant))
                }
                Err(rejection) => ListedAnswer::Rejected(wanted.job, rejection),
            });
        }
        self.record(request.command, asked, recordable(&grants));
        Ok(answers.into_iter().flatten().collect())
    }

    /// The order of claims, for what is QUEUED.
    fn urgency(&self, id: JobId) -> Option<(i16, DateTime<Utc>, JobId)> {
        match self.rows.get(&id).map(|row| (row.rank, &row.place)) {
            Some((rank, Place::Ready(ready))) => Some((rank, ready.due_at, id)),
            _ => None,
        }
    }

    /// What the asker believes of the job is compared first, then whether it may run now.
    fn claim_one(
        &mut self,
        owner: &Claimant,
        wanted: &DispatchedJob,
        lease: Duration,
    ) -> Result<Grant, ClaimRejection> {
        self.believed(&owner.namespace, wanted)?;
        self.try_claim(owner, wanted.job, lease)
    }

    fn believed(&self, namespace: &Namespace, wanted: &DispatchedJob) -> Result<(), ClaimRejection> {
        let row = self
            .rows
            .get(&wanted.job)
            .filter(|row| row.namespace == *namespace)
            .ok_or(ClaimRejection::JobNotFound)?;
        match row.state() {
            JobState::Queued => {}
            status @ (JobState::Pending | JobState::Running) => {
                return Err(ClaimRejection::NotQueued { status });
            }
            state => return Err(ClaimRejection::AlreadyEnded { state }),
        }
        if row.dispatch_attempt != wanted.dispatch_attempt {
            return Err(ClaimRejection::StaleDispatchAttempt { current: row.dispatch_attempt });
        }
        if row.generation != wanted.generation {
            return Err(ClaimRejection::StaleGeneration { current: self.current_generation(row) });
        }
        Ok(())
    }

    /// Grants a QUEUED job, if its workflow, the overlap policy and the nodes let it run now.
    fn try_claim(&mut self, owner: &Claimant, id: JobId, lease: Duration) -> Result<Grant, ClaimRejection> {
        let row = self.rows.get(&id).cloned().ok_or(ClaimRejection::JobNotFound)?;
        let Place::Ready(ready) = &row.place else {
            return Err(ClaimRejection::NotQueued { status: row.state() });
        };
        if let Some(workflow) = self.workflow_of(&row) {
            match workflow.state {
                WorkflowState::Terminated => return Err(ClaimRejection::WorkflowTerminated),
                WorkflowState::Paused => return Err(ClaimRejection::WorkflowPaused),
                WorkflowState::Active => {}
            }
            if workflow.generation != row.generation && !in_flight(&row) {
                return Err(ClaimRejection::StaleGeneration { current: workflow.generation });
            }
        }
        if let Some(blocker) = self.blocker(id, &row) {
            self.hold_back(id, blocker);
            return Err(ClaimRejection::BlockedBy { job: blocker });
        }
        let placement = match row.route.kind {
            JobKind::Container => {
                Some(self.place(&owner.namespace, id, None).ok_or(ClaimRejection::NoRuntimeNode)?)
            }
            JobKind::Heartbeat | JobKind::Handler | JobKind::Recipe => None,
        };
        self.take_workflow_slot(id, &row);

        let keep_attempt = ready.keep_attempt;
        let now = self.now();
        let (floor, renewed_after) = (self.cluster_generation << 40, self.restarts);
        let timeout = self.jobs.get(&id).and_then(|job| job.timeout);
        let row = self.rows.get_mut(&id).ok_or(ClaimRejection::JobNotFound)?;
        row.epoch = row.epoch.max(floor) + 1;
        row.attempt += i32::from(!keep_attempt);
        let claim_epoch = row.epoch;
        row.place = Place::Leased(Box::new(Lease {
            claim_epoch,
            claim_renewed: false,
            not_before: None,
            cleanup_pending_since: None,
            renewed_after,
            excused: false,
            owner: owner.clone(),
            token: LeaseToken::generate(),
            duration: lease,
            expires_at: now + delta(lease),
            renewals: 0,
            cancel_requested: false,
            cancel_deadline: None,
            // The worker ends the work at the timeout; one lease more is for telling us so.
            run_deadline: timeout.map(|timeout| now + delta(timeout + lease)),
            placement,
            container: None,
            redeemed: None,
        }));
        Ok(self.grant(id).expect("the lease was written just now"))
    }

    /// Picks a free slot on the least loaded fresh READY node, and takes it.
    pub(super) fn place(
        &mut self,
        namespace: &Namespace,
        job: JobId,
        task: Option<TaskKey>,
    ) -> Option<Placement> {
        let (_, name, slot) = self
            .nodes
            .iter()
            .filter(|((ns, _), node)| ns == namespace && node.ready && node.fresh)
            .filter_map(|((_, name), node)| {
                let taken = self.slots_of(namespace, name);
                // A node that came back with fewer slots may have jobs in higher ones.
                if taken.len() >= usize::try_from(node.max_concurrency).unwrap_or(0) {
                    return None;
                }
                let slot = (1..=node.max_concurrency).find(|slot| taken.iter().all(|(s, _)| s != slot))?;
                Some((taken.len(), name.clone(), slot))
            })
            .min()?;
        let node = self.nodes.get(&(namespace.clone(), name.clone()))?;
        let placement = Placement {
            node: name.clone(),
            incarnation: node.incarnation,
            endpoint: node.endpoint.clone(),
            engine_id: node.engine_id.clone(),
        };
        self.node_slots.insert((namespace.clone(), name, slot), (job, task));
        Some(placement)
    }

    pub(super) fn slots_of(&self, namespace: &Namespace, node: &NodeId) -> Vec<(i32, JobId)> {
        let slots = self.node_slots.iter().filter(|((ns, name, _), _)| ns == namespace && name == node);
        slots.map(|((_, _, slot), (job, _))| (*slot, *job)).collect()
    }

    /// The present lease of a job as its holder is told of it.
    pub(super) fn grant(&self, id: JobId) -> Option<Grant> {
        let row = self.rows.get(&id)?;
        let job = self.jobs.get(&id)?;
        let lease = row.lease()?;
        Some(Grant {
            authority: Authority {
                owner: lease.owner.clone(),
                job: id,
                token: lease.token,
                epoch: Epoch(row.epoch),
            },
            kind: job.kind,
            route: row.route.clone(),
            workflow: row.workflow.clone(),
            generation: row.generation,
            dispatch_attempt: row.dispatch_attempt,
            attempt: row.attempt,
            lease: lease.duration,
            definition: Arc::clone(&job.definition),
            payload: Arc::clone(&job.payload),
            timeout: job.timeout,
            retry: job.retry,
            trace_parent: job.trace_parent.clone(),
            placement: lease.placement.clone(),
        })
    }

    // -- replay ---------------------------------------------------------------------------------------

    pub(super) fn record(&mut self, command: CommandId, request: String, grants: Vec<(JobId, LeaseToken)>) {
        self.commands.insert(command, Command { request, grants });
    }

    /// The grants of a claim that ran before; another request under its id is refused.
    pub(super) fn recorded(
        &self,
        operation: &'static str,
        command: CommandId,
        request: &str,
    ) -> Result<Option<Vec<(JobId, LeaseToken)>>, StoreError> {
        match self.commands.get(&command) {
            None => Ok(None),
            Some(recorded) if recorded.request == request => Ok(Some(recorded.grants.clone())),
            Some(_) => Err(StoreError {
                operation,
                kind: StoreErrorKind::CommandConflict,
                applied: Applied::No,
                message: "command_conflict: this command id was used for another request; use a new one"
                    .to_owned(),
            }),
        }
    }

    /// A recorded grant, if it is still live with the token that it was made with.
    pub(super) fn live_grant(&self, owner: &Claimant, job: JobId, token: LeaseToken) -> Option<Grant> {
        let grant = self.grant(job)?;
        let wanted = Authority { owner: owner.clone(), job, token, epoch: grant.authority.epoch };
        self.live(&wanted)?;
        Some(grant)
    }

    fn regrant(&self, request: &OpenClaim, job: JobId, token: LeaseToken) -> Option<Grant> {
        self.live_grant(&request.owner, job, token)
    }

    /// Still live grants, and for every other job why it would not be granted now; never anything new.
    fn replay_listed(
        &mut self,
        request: &ListedClaim,
        recorded: &[(JobId, LeaseToken)],
    ) -> Vec<ListedAnswer> {
        let answer = |wanted: &DispatchedJob| {
            let granted = recorded.iter().find(|(job, _)| *job == wanted.job);
            if let Some(grant) =
                granted.and_then(|(job, token)| self.live_grant(&request.owner, *job, *token))
            {
                return ListedAnswer::Granted(Box::new(grant));
            }
            let rejection = match self.believed(&request.owner.namespace, wanted) {
                Err(rejection) => rejection,
                // It could be claimed, but not by this command any more.
                Ok(()) => ClaimRejection::Contended,
            };
            ListedAnswer::Rejected(wanted.job, rejection)
        };
        request.jobs.iter().map(answer).collect()
    }
}

fn recordable(grants: &[Grant]) -> Vec<(JobId, LeaseToken)> {
    grants.iter().map(|grant| (grant.authority.job, grant.authority.token)).collect()
}

pub(super) fn check_duration(operation: &'static str, lease: Duration) -> Result<(), StoreError> {
    if DURATIONS.contains(&lease) {
        return Ok(());
    }
    Err(refused(
        operation,
        format!("invalid_duration: a lease of {lease:?} is refused; choose between 2s and 15m"),
    ))
}
