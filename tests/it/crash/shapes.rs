//! The jobs that together lead over every point, and how each is to end whatever happens on its way.

use std::time::Duration;

use leasehold::{
    postgres::{PgStore, cancel::CancelAnswer},
    protocol::domain::{
        ContainerSpec, FailureKind, JobDefinition, JobId, JobState, Namespace, NewJob, PullPolicy,
        RetryPolicy,
    },
};
use leasehold_actors::testing::crash_points::{Deed, Fault, Side};

use super::{bed::Bed, victim::Work};
use crate::support::{engine::IMAGE, eventually::eventually};

/// A way through the points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A handler that takes long enough to be renewed.
    Handler,
    /// The same, PENDING and due.
    Due,
    /// A handler that fails for good.
    Failing,
    /// A handler that is cancelled while it runs.
    CanceledHandler,
    /// A worker that is told to drain while its handler runs.
    Drained,
    /// A handler whose claim must be replayed.
    Replayed,
    /// A handler whose end must be reconciled, since its LeaseActor died.
    Unconfirmed,
    /// A container that runs to its end.
    Container,
    /// A container that is cancelled while it runs.
    CanceledContainer,
    /// The same, and the engine does not confirm that it was marked.
    KilledContainer,
    /// A container that is cancelled after it was created, and before it is attached.
    DiscardedContainer,
    /// A handler whose first worker was killed, and which is recovered.
    LostHandler,
    /// The same, and the answer to the recovery is lost.
    LostReplayed,
    /// A container whose first worker was killed; it still runs when it is recovered.
    LostRunning,
    /// The same, and it has ended by itself meanwhile.
    LostExited,
    /// The same, and it was not attached yet.
    LostUnattached,
    /// A container whose first worker was killed, and whose engine does not answer the recoverer at first.
    LostOffline,
}

/// What is done to a running job from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    Nothing,
    Cancel,
    Drain,
}

impl Shape {
    pub const ALL: [Self; 17] = [
        Self::Handler,
        Self::Due,
        Self::Failing,
        Self::CanceledHandler,
        Self::Drained,
        Self::Replayed,
        Self::Unconfirmed,
        Self::Container,
        Self::CanceledContainer,
        Self::KilledContainer,
        Self::DiscardedContainer,
        Self::LostHandler,
        Self::LostReplayed,
        Self::LostRunning,
        Self::LostExited,
        Self::LostUnattached,
        Self::LostOffline,
    ];

    /// How the first worker dies that had the job, before the one that the cell is about begins.
    pub fn lost_by(self) -> Option<Fault> {
        let (call, side) = match self {
            Self::LostHandler | Self::LostReplayed => ("store.renew", Side::After),
            Self::LostRunning | Self::LostExited | Self::LostOffline => ("engine.wait", Side::Before),
            Self::LostUnattached => ("engine.create", Side::After),
            _ => return None,
        };
        Some(Fault::once(call, side, Deed::Kill))
    }

    /// What leads to the point in question.
    pub fn prelude(self) -> Vec<Fault> {
        match self {
            Self::Replayed => vec![Fault::once("store.claim", Side::After, Deed::ReplyLost)],
            Self::LostReplayed => vec![Fault::once("store.recover", Side::After, Deed::ReplyLost)],
            // More often than a recovery asks before it is put off.
            Self::LostOffline => {
                vec![Fault { times: 7, ..Fault::once("engine.info", Side::Before, Deed::RequestLost) }]
            }
            Self::Unconfirmed => vec![Fault::once("store.end.complete", Side::Before, Deed::Panic)],
            Self::KilledContainer => {
                vec![Fault::once("engine.mark_stopped", Side::Before, Deed::RequestLost)]
            }
            Self::DiscardedContainer => {
                vec![Fault::once("engine.create", Side::After, Deed::ReplyAtCancel)]
            }
            _ => Vec::new(),
        }
    }

    pub fn push(self) -> Push {
        match self {
            Self::CanceledHandler
            | Self::CanceledContainer
            | Self::KilledContainer
            | Self::DiscardedContainer => Push::Cancel,
            Self::Drained => Push::Drain,
            _ => Push::Nothing,
        }
    }

    /// Its work is prescribed to begin anew, although its worker lives.
    pub fn restarts(self) -> bool {
        matches!(self, Self::Drained | Self::Unconfirmed) || self.lost_by().is_some()
    }

    pub fn is_container(self) -> bool {
        match self {
            Self::Container
            | Self::CanceledContainer
            | Self::KilledContainer
            | Self::DiscardedContainer
            | Self::LostRunning
            | Self::LostExited
            | Self::LostUnattached
            | Self::LostOffline => true,
            Self::Handler
            | Self::Due
            | Self::Failing
            | Self::CanceledHandler
            | Self::Drained
            | Self::Replayed
            | Self::Unconfirmed
            | Self::LostHandler
            | Self::LostReplayed => false,
        }
    }

    fn definition(self) -> (JobDefinition, String) {
        let script = match self {
            Self::Container | Self::LostExited | Self::LostUnattached => "echo one; sleep 1.5; echo two",
            // In its first claim longer than any lease.
            Self::LostRunning | Self::LostOffline => {
                "trap 'exit 9' TERM; echo one; [ $LEASEHOLD_FENCING_EPOCH != 1 ] || sleep 600 & wait; echo two"
            }
            _ => "trap 'exit 0' TERM; echo one; sleep 600 & wait",
        };
        if self.is_container() {
            let spec = ContainerSpec {
                image: IMAGE.to_owned(),
                command: ["sh", "-c", script].map(str::to_owned).to_vec(),
                network: Some("none".to_owned()),
                stop_grace_ms: Some(1000),
                pull: PullPolicy::Never,
                ..ContainerSpec::default()
            };
            return (JobDefinition::Container(spec), "null".to_owned());
        }
        let ms = match self {
            Self::CanceledHandler => 600_000,
            Self::Failing => 200,
            _ => 1500,
        };
        // Whoever is to be lost is there until then.
        let first_ms = if self.lost_by().is_some() { 600_000 } else { ms };
        let work = Work { ms, first_ms, fails: self == Self::Failing };
        (JobDefinition::Handler { name: "work".to_owned() }, serde_json::to_string(&work).unwrap())
    }

    pub async fn submit(self, bed: &Bed, namespace: &Namespace) -> JobId {
        let (definition, payload) = self.definition();
        let hour = chrono::Utc::now() + chrono::Duration::hours(1);
        let job = NewJob {
            namespace: namespace.clone(),
            payload,
            run_at: (self == Self::Due).then_some(hour),
            retry: RetryPolicy {
                max_system: Some(3),
                backoff_ms: Some(100),
                backoff_cap_ms: Some(100),
                ..RetryPolicy::default()
            },
            ..NewJob::ad_hoc(definition)
        };
        let id = bed.store.submit(&job).await.unwrap().job;
        if self == Self::Due {
            let due = "update leasehold.waiting set due_at = clock_timestamp() where job_id = $1";
            bed.client.execute(due, &[&id.0]).await.unwrap();
        }
        id
    }

    /// The state that it must end in, and the code of its failure.
    pub fn ends_as(self) -> (JobState, Option<(FailureKind, &'static str)>) {
        match self {
            Self::Failing => (JobState::Failed, Some((FailureKind::User, "told-to"))),
            _ if self.push() == Push::Cancel => (JobState::Canceled, None),
            _ => (JobState::Completed, None),
        }
    }
}

/// Cancels a job once work on it has begun (or is about to).
pub async fn cancel_when_begun(bed: &Bed, namespace: &Namespace, job: JobId, shape: Shape) {
    eventually(Duration::from_secs(60), "the work begins", async || {
        let begun = match shape {
            Shape::DiscardedContainer => !bed.containers(Some(job)).await.is_empty(),
            _ => bed.runs(job) > 0,
        };
        begun.then_some(())
    })
    .await;
    ask_to_cancel(&bed.store, namespace, job).await;
}

/// Again and again: a job between two tables is in neither.
pub async fn ask_to_cancel(store: &PgStore, namespace: &Namespace, job: JobId) {
    let answer = store.request_cancel(namespace, job, Duration::from_secs(1)).await.unwrap();
    assert_ne!(answer, CancelAnswer::NotFound, "job {job}");
}
