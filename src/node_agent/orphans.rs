//! The reaper: removes the containers of its fleet that no claim stands behind any more.
//!
//! It lists first and asks PostgreSQL after. A container that is listed was created under a claim that had been
//! committed before, so an answer that is younger than the list knows of that claim or of a later one; the other
//! way round, a container made between the answer and the list would be taken for an orphan. And what is an
//! orphan once stays one, since epochs only rise: whatever happens between the answer and the removal, it is
//! never a wrong one.
//!
//! | the job of the container | then |
//! |---|---|
//! | is RUNNING under the claim that made the container | it stays, also when the lease has expired or was taken over |
//! | is RUNNING under a later claim | orphan |
//! | is RUNNING, with another container attached | orphan |
//! | is a recipe, and the task that the container is of is over, or has another one | orphan |
//! | is unknown, or not RUNNING | orphan |
//! | cannot be told: no answer, another engine, labels that are not ours | nothing is touched |

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use leasehold_actors::{
    domain::{Epoch, JobId, Namespace, NodeId, ProcessId},
    error::{EngineError, EngineErrorKind, StoreError},
    ports::{ContainerEngine, ContainerStatus},
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::postgres::{
    PgStore,
    nodes::{ClaimsQuestion, StandingClaim},
};

/// What a name ends with once somebody of ours has decided that the container is to end.
pub(super) const MARK: &str = ".stopped";

/// The longest wait for a mark: what follows is a SIGKILL, which nobody takes for the program's own exit.
pub(super) const MARK_LIMIT: Duration = Duration::from_secs(2);

/// How many containers are removed at once.
const AT_ONCE: usize = 8;

/// How soon a pass that failed is tried again; the interval, if that is shorter.
const RETRY: Duration = Duration::from_secs(2);

/// Whose containers, on which engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// The tenant.
    pub namespace: Namespace,
    /// The node.
    pub node: NodeId,
    /// The agent's process, which must still be the node's.
    pub process: ProcessId,
    /// The engine that this node was registered with.
    pub engine_id: String,
    /// The fleet.
    pub fleet: Uuid,
}

impl Domain {
    /// The labels that a container must carry to be this node's.
    #[must_use]
    pub fn labels(&self) -> Vec<(String, String)> {
        [
            ("leasehold.fleet", self.fleet.to_string()),
            ("leasehold.namespace", self.namespace.to_string()),
            ("leasehold.node", self.node.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec()
    }
}

/// Why a container has nobody behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orphan {
    /// Its job is unknown or not RUNNING.
    NotRunning,
    /// Its job runs under a later claim.
    Superseded {
        /// The epoch of that claim.
        claim: Epoch,
    },
    /// Its job, or its task, has another container.
    Replaced,
    /// The task of a recipe that it was made for is over.
    TaskOver,
}

impl fmt::Display for Orphan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning => f.write_str("its job is not running"),
            Self::Superseded { claim } => write!(f, "its job was claimed again, under epoch {claim}"),
            Self::Replaced => f.write_str("its job has another container"),
            Self::TaskOver => f.write_str("the task that it was made for is over"),
        }
    }
}

/// A container that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaped {
    /// Its name, without the mark.
    pub name: String,
    /// The job that it named.
    pub job: JobId,
    /// The epoch of the claim that made it.
    pub epoch: Epoch,
    /// Why.
    pub orphan: Orphan,
}

/// What a pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pass {
    /// Containers of this node that were listed.
    pub listed: usize,
    /// Those that were removed.
    pub reaped: Vec<Reaped>,
    /// Orphans that the engine did not remove; the next pass finds them again.
    pub left: usize,
}

/// Why a pass touched nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PassError {
    /// The engine did not tell what it has.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The database did not tell what runs.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another engine answers at the endpoint.
    #[error("engine {found} answers at the endpoint of {expected}; nothing is touched")]
    OtherEngine {
        /// The one that was registered.
        expected: String,
        /// The one that answers.
        found: String,
    },
    /// The database says that it is not ours to decide.
    #[error(
        "the database does not know this process and engine as the node's, or is another fleet's; nothing is touched"
    )]
    NotOurs,
}

/// One pass: what nobody stands behind is marked, killed and removed.
///
/// # Errors
/// [`PassError`], and then nothing was touched.
pub async fn pass(engine: &dyn ContainerEngine, store: &PgStore, domain: &Domain) -> Result<Pass, PassError> {
    let found = engine.info().await?.engine_id;
    if found != domain.engine_id {
        return Err(PassError::OtherEngine { expected: domain.engine_id.clone(), found });
    }
    let labels = domain.labels();
    let containers: Vec<Labelled> =
        engine.list(&labels).await?.into_iter().filter_map(|status| Labelled::of(status, &labels)).collect();
    let mut jobs: Vec<JobId> = containers.iter().map(|container| container.job).collect();
    jobs.sort_unstable();
    jobs.dedup();
    if jobs.is_empty() {
        return Ok(Pass::default());
    }
    let ask = ClaimsQuestion {
        namespace: &domain.namespace,
        node: &domain.node,
        process: domain.process,
        engine_id: &domain.engine_id,
        fleet: domain.fleet,
        jobs: &jobs,
    };
    let standing = store.node_claims(&ask).await?.ok_or(PassError::NotOurs)?;
    let standing: HashMap<JobId, StandingClaim> =
        standing.into_iter().map(|claim| (claim.job, claim)).collect();
    let listed = containers.len();
    let orphans = containers.into_iter().filter_map(|container| {
        let orphan = judge(&container, standing.get(&container.job))?;
        Some((container, orphan))
    });
    let fates: Vec<Fate> = stream::iter(orphans)
        .map(|(container, orphan)| reap(engine, container, orphan))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut done = Pass { listed, ..Pass::default() };
    for fate in fates {
        match fate {
            Fate::Reaped(reaped) => done.reaped.push(reaped),
            Fate::Gone => {}
            Fate::Left => done.left += 1,
        }
    }
    Ok(done)
}

/// What became of an orphan.
enum Fate {
    Reaped(Reaped),
    /// Whoever had it has removed it since it was listed.
    Gone,
    /// The engine did not remove it.
    Left,
}

/// A container of ours and what its labels say.
#[derive(Debug, Clone)]
struct Labelled {
    status: ContainerStatus,
    job: JobId,
    epoch: Epoch,
    /// The task within a recipe that it is of; none for a CONTAINER job's own.
    task: Option<String>,
}

impl Labelled {
    /// Nothing for what does not carry all that we give: somebody else made it, whatever it says of itself.
    fn of(status: ContainerStatus, expected: &[(String, String)]) -> Option<Self> {
        if !expected.iter().all(|label| status.labels.contains(label)) {
            return None;
        }
        let label =
            |key: &str| status.labels.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        let job = JobId(label("leasehold.job")?.parse().ok()?);
        let epoch = Epoch(label("leasehold.epoch")?.parse().ok()?);
        let task = Some(label("leasehold.task")?.to_owned()).filter(|task| !task.is_empty());
        Some(Self { status, job, epoch, task })
    }

    fn name(&self) -> &str {
        self.status.name.strip_suffix(MARK).unwrap_or(&self.status.name)
    }
}

fn judge(container: &Labelled, standing: Option<&StandingClaim>) -> Option<Orphan> {
    let Some(claim) = standing else { return Some(Orphan::NotRunning) };
    if container.epoch < claim.epoch {
        return Some(Orphan::Superseded { claim: claim.epoch });
    }
    let attached = match &container.task {
        None => claim.attached.as_ref(),
        // A claim that this database has lost: whoever holds the job now knows nothing of its tasks.
        Some(_) if container.epoch > claim.epoch => None,
        // Its row was written before it was created, and is gone only when nothing of it runs.
        Some(task) => match claim.tasks.iter().find(|(key, _)| key.as_str() == task) {
            Some((_, attached)) => attached.as_ref(),
            None => return Some(Orphan::TaskOver),
        },
    };
    attached.is_some_and(|attached| *attached != container.status.id).then_some(Orphan::Replaced)
}

async fn reap(engine: &dyn ContainerEngine, container: Labelled, orphan: Orphan) -> Fate {
    let name = container.name().to_owned();
    let marked_now = container.status.name == name && mark(engine, &container.status, &name).await;
    // A job whose container was removed first and whose end was told after looks like this.
    if !marked_now && matches!(engine.inspect(&container.status.id).await, Ok(None)) {
        return Fate::Gone;
    }
    match engine.remove(&container.status.id).await {
        Ok(()) => {}
        Err(error) if error.kind == EngineErrorKind::NoSuchContainer => return Fate::Gone,
        Err(error) => {
            tracing::warn!(container = name, %error, "an orphan is not removed yet");
            return Fate::Left;
        }
    }
    tracing::warn!(container = name, job = %container.job, epoch = %container.epoch, reason = %orphan, "removed an orphan");
    Fate::Reaped(Reaped { name, job: container.job, epoch: container.epoch, orphan })
}

/// Marks before anything ends the container. What follows is never more than a SIGKILL, so a mark that fails
/// costs only the better word for it, whatever the engine refuses it with. Whether it was marked now.
pub(super) async fn mark(engine: &dyn ContainerEngine, status: &ContainerStatus, name: &str) -> bool {
    match timeout(MARK_LIMIT, engine.mark_stopped(&status.id, name)).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => tracing::debug!(container = name, %error, "not marked"),
        Err(_) => tracing::debug!(container = name, "no answer to the mark"),
    }
    false
}

/// The task that makes the passes; it ends with this handle.
pub(super) struct Reaper {
    domain: watch::Sender<Domain>,
    hurry: Arc<Notify>,
    pub(super) task: JoinHandle<()>,
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reaper {
    /// The first pass comes at once.
    pub(super) fn start<E: ContainerEngine>(
        engine: E,
        store: PgStore,
        domain: Domain,
        interval: Duration,
    ) -> Self {
        let hurry = Arc::new(Notify::new());
        let (publish, current) = watch::channel(domain);
        let task = tokio::spawn(run(engine, store, current, Arc::clone(&hurry), interval));
        Self { domain: publish, hurry, task }
    }

    /// Engine or database are back: a pass without waiting for its time.
    pub(super) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// The node was registered with another engine.
    pub(super) fn now_for(&self, engine_id: &str) {
        self.domain.send_modify(|domain| engine_id.clone_into(&mut domain.engine_id));
        self.hurry();
    }
}

async fn run<E: ContainerEngine>(
    engine: E,
    store: PgStore,
    domain: watch::Receiver<Domain>,
    hurry: Arc<Notify>,
    interval: Duration,
) {
    let mut silent = false;
    loop {
        let now = domain.borrow().clone();
        let next = match pass(&engine, &store, &now).await {
            Ok(done) => {
                silent = false;
                if done.left == 0 { interval } else { RETRY.min(interval) }
            }
            Err(error) => {
                // Told once an outage.
                if !std::mem::replace(&mut silent, true) {
                    tracing::warn!(node = %now.node, %error, "cannot look for orphans; trying on");
                }
                RETRY.min(interval)
            }
        };
        tokio::select! {
            () = sleep(next) => {}
            () = hurry.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_actors::{
        domain::{ContainerId, TaskKey},
        ports::ContainerState,
    };

    use super::*;

    fn domain() -> Domain {
        Domain {
            namespace: Namespace::default(),
            node: NodeId::new("n1").expect("a plain name"),
            process: ProcessId::generate(),
            engine_id: "e1".to_owned(),
            fleet: Uuid::from_u128(7),
        }
    }

    fn id(text: &str) -> ContainerId {
        ContainerId::new(text).expect("a plain name")
    }

    fn container(change: impl FnOnce(&mut Vec<(String, String)>)) -> ContainerStatus {
        let mut labels = domain().labels();
        for (key, value) in [("leasehold.job", "42"), ("leasehold.epoch", "5"), ("leasehold.task", "")] {
            labels.push((key.to_owned(), value.to_owned()));
        }
        change(&mut labels);
        ContainerStatus {
            id: id("mine"),
            name: "leasehold-00000000-42-5".to_owned(),
            state: ContainerState::Running { paused: false },
            labels,
            started_at: None,
            finished_at: None,
            witnessed: true,
        }
    }

    fn key(text: &str) -> TaskKey {
        TaskKey::new(text).expect("a plain key")
    }

    fn judged(task: &str, standing: Option<(i64, Option<&str>)>) -> Option<Orphan> {
        let status = container(|labels| {
            labels.iter_mut().filter(|(key, _)| key == "leasehold.task").for_each(|(_, value)| {
                task.clone_into(value);
            });
        });
        let labelled = Labelled::of(status, &domain().labels()).expect("it is ours");
        let standing = standing.map(|(epoch, attached)| StandingClaim {
            job: JobId(42),
            epoch: Epoch(epoch),
            attached: attached.map(id),
            tasks: ["build-1", "build-2"].map(|task| (key(task), attached.map(id))).to_vec(),
        });
        judge(&labelled, standing.as_ref())
    }

    #[test]
    fn only_what_no_claim_stands_behind_is_an_orphan() {
        assert_eq!(judged("", None), Some(Orphan::NotRunning));
        assert_eq!(judged("", Some((6, None))), Some(Orphan::Superseded { claim: Epoch(6) }));
        assert_eq!(judged("", Some((6, Some("mine")))), Some(Orphan::Superseded { claim: Epoch(6) }));
        assert_eq!(judged("", Some((5, Some("other")))), Some(Orphan::Replaced));
        // Created and not attached yet, attached, and of a claim that this database has lost.
        assert_eq!(judged("", Some((5, None))), None);
        assert_eq!(judged("", Some((5, Some("mine")))), None);
        assert_eq!(judged("", Some((4, None))), None);
        // The tasks of one recipe have a container each.
        assert_eq!(judged("build-1", Some((5, None))), None);
        assert_eq!(judged("build-2", Some((5, Some("mine")))), None);
        assert_eq!(judged("build-1", Some((5, Some("other")))), Some(Orphan::Replaced));
        assert_eq!(judged("build-1", Some((6, None))), Some(Orphan::Superseded { claim: Epoch(6) }));
        assert_eq!(judged("build-1", None), Some(Orphan::NotRunning));
        // One of them is over, and left its container.
        assert_eq!(judged("build-3", Some((5, None))), Some(Orphan::TaskOver));
        assert_eq!(judged("build-3", Some((4, None))), None);
    }

    #[test]
    fn what_does_not_carry_all_our_labels_is_never_ours() {
        let expected = domain().labels();
        assert!(Labelled::of(container(|_| ()), &expected).is_some());
        for key in [
            "leasehold.fleet",
            "leasehold.namespace",
            "leasehold.node",
            "leasehold.job",
            "leasehold.epoch",
            "leasehold.task",
        ] {
            let without = container(|labels| labels.retain(|(name, _)| name != key));
            assert!(Labelled::of(without, &expected).is_none(), "without {key}");
            if key != "leasehold.task" {
                let other = container(|labels| {
                    for (_, value) in labels.iter_mut().filter(|(name, _)| name == key) {
                        "another".clone_into(value);
                    }
                });
                assert!(Labelled::of(other, &expected).is_none(), "another {key}");
            }
        }
    }
}
