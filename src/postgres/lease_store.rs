//! `impl LeaseStore for PgStore`: checks what can be checked here, and hands on to the verbs.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{CommandId, ContainerId, Failure, FailureKind, Namespace, NodeId, TaskKey},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{
        Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
        LogAppend, LogBatch, OpenClaim, Postponed, Reconciliation, RecoverAnswer, RecoverRequest, Renewal,
        StoredLogs, TaskPlace, TaskPlaced, TaskUnplaced,
    },
};

use super::{
    PgStore,
    attach::{
        AppendLogs, AttachAsk, AttachContainer, LogAsk, OffsetsAsk, ProgressAsk, ReadLogOffsets,
        ReportProgress, reconcile,
    },
    claim::{self, ClaimAsk, ClaimReply, Wish},
    dispatch,
    end::{EndAsk, Reschedule},
    grant,
    owners::Holder,
    protected::{self, Verb},
    recover::{self, PostponeAsk, PostponeRecovery, RecoverAsk},
    tasks::{self, AttachTask, AttachTaskAsk, PlaceAsk, PlaceTask, Tried, UnplaceAsk, UnplaceTask},
};

/// `LEASE_DURATION_MIN` and `LEASE_DURATION_MAX`.
const DURATIONS: std::ops::RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_mins(15);

fn lease_ms(operation: &'static str, lease: Duration) -> Result<i32, StoreError> {
    if DURATIONS.contains(&lease)
        && let Ok(ms) = i32::try_from(lease.as_millis())
    {
        return Ok(ms);
    }
    Err(StoreError {
        operation,
        kind: StoreErrorKind::Refused,
        applied: Applied::No,
        message: format!("invalid_duration: a lease of {lease:?} is refused; choose between 2s and 15m"),
    })
}

impl PgStore {
    pub(super) fn holder(&self, authority: &Authority) -> Holder {
        Holder::new(&self.inner.owners, authority)
    }

    /// A call that is never gathered, on the store's own runtime.
    pub(super) async fn single<V: Verb>(&self, ask: V::Ask) -> Result<V::Answer, StoreError> {
        let pools = self.inner.pools.clone();
        let limit = pools.timeout;
        protected::on(&self.inner.io, V::OPERATION, limit, async move {
            protected::single::<V>(&pools, &ask).await
        })
        .await
    }

    async fn claimed(&self, ask: ClaimAsk) -> Result<ClaimReply, StoreError> {
        let operation = ask.operation();
        if ask.repeat {
            // Most repeats ask for what is recorded. Where nothing is, this is the claim; then it is recorded
            // whatever it grants, so that the first one, should it still be on its way, grants nothing.
            let desk = self.inner.desk.clone();
            let limit = desk.pools.timeout;
            return protected::on(&self.inner.io, operation, limit, async move {
                match grant::recall(&desk.pools, &ask).await? {
                    Some(recorded) => Ok(recorded),
                    None => claim::alone(&desk, &ask).await,
                }
            })
            .await;
        }
        self.inner.claims.ask(ask, self.inner.pools.timeout).await
    }
}

#[async_trait]
impl LeaseStore for PgStore {
    async fn dispatch(&self, namespace: &Namespace, limit: u32) -> Result<Dispatched, StoreError> {
        let inner = Arc::clone(&self.inner);
        let namespace = namespace.clone();
        protected::on(&self.inner.io, "dispatch", self.inner.pools.timeout, async move {
            let answer = dispatch::dispatch(inner.pools.clone(), namespace.clone(), limit).await?;
            if answer.moved > 0 {
                inner.desk.marks.forget(&namespace);
            }
            dispatch::keep_house(inner.pools.clone(), &inner.housekeeping).await;
            Ok(answer)
        })
        .await
    }

    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        let lease_ms = lease_ms("claim", request.lease)?;
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        if !request.repeat && (limit == 0 || request.routes.is_empty()) {
            return Ok(ClaimAnswer::default());
        }
        let ask = ClaimAsk {
            owner: self.inner.owners.share(&request.owner),
            command: request.command,
            repeat: request.repeat,
            lease_ms,
            wish: Wish::Open { routes: Arc::clone(&request.routes), limit, facts: request.facts.clone() },
        };
        let grants = self.claimed(ask).await?.into_iter().filter_map(|answer| match answer {
            ListedAnswer::Granted(grant) => Some(*grant),
            ListedAnswer::Rejected(..) => None,
        });
        Ok(ClaimAnswer { grants: grants.collect() })
    }

    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        let lease_ms = lease_ms("claim_listed", request.lease)?;
        let ask = ClaimAsk {
            owner: self.inner.owners.share(&request.owner),
            command: request.command,
            repeat: request.repeat,
            lease_ms,
            wish: Wish::Listed { jobs: request.jobs.clone() },
        };
        self.claimed(ask).await
    }

    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.inner.renewals.ask(self.holder(authority), self.inner.pools.timeout).await
    }

    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        let ask =
            AttachAsk { holder: self.holder(authority), node: node.clone(), container: container.clone() };
        self.single::<AttachContainer>(ask).await
    }

    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        for _ in 0..tasks::TRIES {
            let ask = PlaceAsk { holder: self.holder(authority), place: place.clone() };
            match self.single::<PlaceTask>(ask).await? {
                Tried::Answered(answer) => return Ok(answer),
                Tried::Contended => {
                    tokio::time::sleep(tasks::BETWEEN_TRIES.mul_f64(rand::random())).await;
                }
            }
        }
        Err(tasks::contended())
    }

    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        let (holder, task) = (self.holder(authority), task.clone());
        let ask = AttachTaskAsk { holder, task, node: node.clone(), container: container.clone() };
        self.single::<AttachTask>(ask).await
    }

    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        self.single::<UnplaceTask>(UnplaceAsk { holder: self.holder(authority), task: task.clone() }).await
    }

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        let ask = LogAsk { holder: self.holder(authority), batches: batches.to_vec() };
        self.single::<AppendLogs>(ask).await
    }

    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError> {
        let ask = OffsetsAsk { holder: self.holder(authority), task: task.cloned() };
        self.single::<ReadLogOffsets>(ask).await
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        ReportProgress::check(progress)?;
        let ask = ProgressAsk { holder: self.holder(authority), note: progress.to_owned() };
        self.single::<ReportProgress>(ask).await
    }

    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        let mut end = end.clone();
        if let End::Lost { message, .. } = &mut end {
            *message = Failure::new(FailureKind::System, "lease_lost", std::mem::take(message)).message;
        }
        let ask = EndAsk { holder: self.holder(authority), command: command.0, end };
        let limit = self.inner.pools.timeout;
        match &ask.end {
            End::Complete { .. } => self.inner.completions.ask(ask, limit).await,
            End::Fail { .. }
            | End::FailForGood { .. }
            | End::Lost { .. }
            | End::Cancel
            | End::Release { .. } => self.inner.endings.ask(ask, limit).await,
            // What it waits for may come at this moment: it is looked for behind the locks of whoever brings it.
            End::Reschedule { wake, .. } if !wake.is_empty() => {
                let pools = self.inner.pools.clone();
                protected::on(&self.inner.io, "reschedule", limit, async move {
                    protected::alone::<Reschedule>(&pools, &ask).await
                })
                .await
            }
            End::Reschedule { .. } => self.single::<Reschedule>(ask).await,
        }
    }

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        let lease_ms = lease_ms("recover", request.lease)?;
        let ask = RecoverAsk {
            owner: self.inner.owners.share(&request.owner),
            command: request.command,
            repeat: request.repeat,
            lease_ms,
            limit: usize::try_from(request.limit).unwrap_or(usize::MAX),
            running_here: request.running_here.iter().map(|job| job.0).collect(),
        };
        let inner = Arc::clone(&self.inner);
        let limit = inner.pools.timeout;
        protected::on(&self.inner.io, "recover", limit, async move {
            recover::recover(&inner.pools, &inner.lookouts, &ask).await
        })
        .await
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError> {
        self.single::<PostponeRecovery>(PostponeAsk { holder: self.holder(authority), delay }).await
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        let (pools, holder) = (self.inner.pools.clone(), self.holder(authority));
        let limit = pools.timeout;
        protected::on(&self.inner.io, "reconcile", limit, async move { reconcile(&pools, &holder).await })
            .await
    }
}
