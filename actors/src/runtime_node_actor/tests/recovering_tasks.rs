//! The containers of recipes' tasks, found by whoever took the job over: what is recorded of them before they are removed.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::oneshot, time::sleep};

use super::bed::{Bed, ENGINE, IMAGE, completed};
use crate::{
    domain::{ContainerSpec, FailureKind, TaskKey},
    ports::{LogStream, RuntimeStanding, Takeover, TaskContainer, TaskOccurrence},
    runtime_node_actor::{
        NotRecorded, RecoverContainer, Recovered, TaskRecovery, TaskResults, plan, recover,
        task::{Redact, TaskEnded},
        tests::recovering::Taken,
    },
    testing::{Call, Script, ScriptedEngine, Trouble},
    work::{LeaseContext, WorkOutcome},
};

const SECOND: Duration = Duration::from_secs(1);
const PATH: &str = "build/one!2";

/// Notes what it is asked to record, and answers as it was told to.
struct Notes {
    recorded: Mutex<Vec<TaskEnded>>,
    answer: Result<(), NotRecorded>,
    engine: ScriptedEngine,
}

#[async_trait]
impl TaskResults for Notes {
    fn longest_line(&self) -> usize {
        100
    }

    fn redact(&self) -> Option<Redact> {
        // `x` stands for a secret.
        Some(Arc::new(|data: &mut [u8], _, _| {
            data.iter_mut().filter(|byte| **byte == b'x').for_each(|byte| *byte = b'*');
            (data.len(), 0)
        }))
    }

    fn unknown<'s>(&self, secrets: &'s [String]) -> Option<&'s str> {
        secrets.iter().map(String::as_str).find(|name| *name != "KNOWN")
    }

    async fn record(
        &self,
        _: &LeaseContext,
        task: &TaskContainer,
        occurrence: &TaskOccurrence,
        ended: TaskEnded,
    ) -> Result<(), NotRecorded> {
        assert_eq!((task.path.as_str(), occurrence.attempt), (PATH, 2));
        assert_eq!(self.engine.containers().len(), 1, "it is removed before it is recorded");
        self.recorded.lock().expect("nothing panics with it").push(ended);
        self.answer.clone()
    }
}

/// A task whose worker is gone.
struct Lost {
    bed: Bed,
    taken: Taken,
    container: TaskContainer,
    notes: Arc<Notes>,
}

impl Lost {
    /// Its container has begun to run.
    async fn running(script: Script) -> Self {
        Self::on(ScriptedEngine::new(ENGINE).image(IMAGE, script)).await
    }

    async fn on(engine: ScriptedEngine) -> Self {
        let bed = Bed::new(engine).await;
        bed.stop_renewing();
        let (node, claim) = (bed.node(), bed.grant.authority.epoch);
        let key = TaskKey::new("0123456789abcdef").expect("a plain key");
        let spec = ContainerSpec { image: IMAGE.to_owned(), ..ContainerSpec::default() };
        let (fleet, placement) = (node.settings.fleet, node.placement.clone());
        let named = (&key, PATH);
        let plan = plan::plan_of_task(fleet, &placement.node, &bed.grant, claim, named, spec, Vec::new());
        let id = node.engine.create(&plan).await.expect("the engine answers");
        node.engine.start(&id).await.expect("the engine answers");
        let container = TaskContainer {
            task: key,
            path: PATH.to_owned(),
            epoch: claim,
            placement,
            container: Some(id),
            runtime: RuntimeStanding::Available,
            occurrence: Some(TaskOccurrence {
                op: "container".to_owned(),
                input_hash: "0f".repeat(32),
                attempt: 2,
                secrets: vec!["KNOWN".to_owned()],
                log_quota_bytes: None,
            }),
        };
        let notes = Notes { recorded: Mutex::default(), answer: Ok(()), engine: bed.engine.clone() };
        let taken = Taken::of(&bed).await;
        Self { bed, taken, container, notes: Arc::new(notes) }
    }

    fn answering(mut self, answer: Result<(), NotRecorded>) -> Self {
        let notes = Notes { recorded: Mutex::default(), answer, engine: self.bed.engine.clone() };
        self.notes = Arc::new(notes);
        self
    }

    async fn ended(self, code: i32) -> Self {
        sleep(10 * SECOND).await;
        self.bed.engine.end_all(code);
        self
    }

    async fn recovered(&self, last_time: bool) -> Recovered {
        let results: Arc<dyn TaskResults> = Arc::clone(&self.notes) as _;
        self.recovered_by(Some(results), last_time).await
    }

    async fn recovered_by(&self, results: Option<Arc<dyn TaskResults>>, last_time: bool) -> Recovered {
        let takeover: Arc<Takeover> = Arc::clone(&self.taken.takeover);
        let message = RecoverContainer {
            lease: self.taken.lease.clone(),
            takeover,
            task: Some(TaskRecovery { container: self.container.clone(), results }),
            last_time,
            adopts: oneshot::channel().0,
        };
        recover::recover(self.bed.node(), message).await
    }

    fn recorded(&self) -> Vec<TaskEnded> {
        std::mem::take(&mut *self.notes.recorded.lock().expect("nothing panics with it"))
    }

    fn is_removed(&self) -> bool {
        self.bed.engine.containers().is_empty()
    }

    fn remarks(&self) -> String {
        self.bed.text(LogStream::System)
    }
}

fn assert_cleaned_up(recovered: &Recovered) {
    assert!(matches!(recovered, Recovered::CleanedUp), "{recovered:?}");
}

fn talks() -> Script {
    Script::hangs()
        .prints(SECOND, LogStream::Stdout, "first xx\n")
        .prints(SECOND, LogStream::Stderr, "oh x\n")
        .prints(SECOND, LogStream::Stdout, "{\"n\": 7}\n")
}

/// The whole output is listened to, whatever the lost worker has stored of it; what it had not stored is stored now.
#[tokio::test(start_paused = true)]
async fn the_own_end_of_a_task_s_container_is_recorded_and_then_it_is_removed() {
    for code in [0, 3] {
        let lost = Lost::running(talks()).await.ended(code).await;
        let stored = crate::ports::LogBatch {
            task: Some(lost.container.task.clone()),
            stream: LogStream::Stdout,
            first_byte: 0,
            data: bytes::Bytes::from_static(b"first **"),
        };
        lost.taken.lease.append_logs(&[stored]).await.expect("the memory store answers");
        assert_cleaned_up(&lost.recovered(false).await);
        let [TaskEnded { outcome, output }] = &lost.recorded()[..] else { panic!("recorded once") };
        match (code, outcome) {
            (0, outcome) => assert_eq!(*outcome, completed()),
            (_, WorkOutcome::Failed(failure)) => {
                assert_eq!((failure.kind, failure.exit_code), (FailureKind::User, Some(3)));
            }
            (_, outcome) => panic!("{outcome:?}"),
        }
        assert!(output.complete);
        assert_eq!(output.last_line.text, b"{\"n\": 7}");
        assert_eq!(output.errors, b"oh x\n");
        assert!(lost.is_removed());
        assert_eq!(lost.bed.text(LogStream::Stdout), "first **\n{\"n\": 7}\n", "secrets are blotted out");
        assert_eq!(lost.bed.text(LogStream::Stderr), "oh *\n");
    }
}

/// It runs anew, and what it printed until then is stored all the same.
#[tokio::test(start_paused = true)]
async fn a_container_that_runs_or_was_killed_is_no_result() {
    for killed in [true, false] {
        let lost = Lost::running(talks()).await;
        sleep(10 * SECOND).await;
        if killed {
            lost.bed.engine.kill_all();
        }
        assert_cleaned_up(&lost.recovered(false).await);
        assert!(lost.recorded().is_empty() && lost.is_removed());
        assert_eq!(lost.bed.text(LogStream::Stdout), "first **\n{\"n\": 7}\n");
    }
}

/// Its end is the only record of what it did, so it stays until that is recorded or given up.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_now_is_put_off_with_its_container() {
    let refused = Err(NotRecorded::NotNow { reason: "the store is away".to_owned() });
    let lost = Lost::running(talks()).await.answering(refused).ended(0).await;
    for _ in 0..2 {
        let found = lost.recovered(false).await;
        let Recovered::NotNow { reason } = &found else { panic!("{found:?}") };
        assert_eq!(*reason, format!("{PATH}: the store is away"));
        assert_eq!((lost.recorded().len(), lost.is_removed()), (1, false));
    }
    assert_cleaned_up(&lost.recovered(true).await);
    assert!(lost.is_removed());

    let lost = Lost::running(talks()).await.answering(Err(NotRecorded::Lost)).ended(0).await;
    let found = lost.recovered(false).await;
    assert!(matches!(found, Recovered::Stopped), "{found:?}");
    assert!(!lost.is_removed(), "it is somebody else's to record");
}

/// A worker that has not the secrets that the program was given cannot blot them out: it leaves the result to one that
/// has them, and stores nothing of the output.
#[tokio::test(start_paused = true)]
async fn output_that_may_show_an_unknown_secret_is_left_to_a_worker_that_knows_it() {
    let mut lost = Lost::running(talks()).await.ended(0).await;
    let occurrence = lost.container.occurrence.as_mut().expect("it is told");
    occurrence.secrets.push("TOKEN".to_owned());
    let found = lost.recovered(false).await;
    let Recovered::NotHere { reason } = &found else { panic!("{found:?}") };
    assert!(reason.contains("no secret TOKEN"), "{reason}");
    assert!(lost.recorded().is_empty() && !lost.is_removed());
    assert_eq!(lost.bed.engine.count(Call::Mark), 0);
    let found = lost.recovered_by(None, false).await;
    assert!(
        matches!(&found, Recovered::NotHere { reason } if reason.contains("runs no recipes")),
        "{found:?}"
    );
    // Nobody has come.
    assert_cleaned_up(&lost.recovered(true).await);
    assert!(lost.recorded().is_empty() && lost.is_removed());
    assert_eq!(lost.bed.text(LogStream::Stdout), "");
    assert!(lost.remarks().contains("no secret TOKEN"), "{}", lost.remarks());
}

/// Nobody needs the result of a job that is to be cancelled: it is not kept waiting for it.
#[tokio::test(start_paused = true)]
async fn the_result_of_a_cancelled_job_is_waited_for_by_nobody() {
    let mut lost = Lost::running(talks()).await.ended(0).await;
    lost.container.occurrence.as_mut().expect("it is told").secrets.push("TOKEN".to_owned());
    let mut takeover = (*lost.taken.takeover).clone();
    takeover.cancel_requested = true;
    lost.taken.takeover = Arc::new(takeover);
    assert_cleaned_up(&lost.recovered(false).await);
    assert!(lost.recorded().is_empty() && lost.is_removed());
}

/// As while its worker lived.
#[tokio::test(start_paused = true)]
async fn the_rest_of_an_output_is_stored_up_to_its_quota() {
    let mut lost = Lost::running(talks()).await.ended(0).await;
    lost.container.occurrence.as_mut().expect("it is told").log_quota_bytes = Some(10);
    assert_cleaned_up(&lost.recovered(false).await);
    let all: usize =
        [LogStream::Stdout, LogStream::Stderr].map(|stream| lost.bed.stored(stream).len()).iter().sum();
    assert_eq!(all, 10);
    assert!(lost.remarks().contains("the limit of 10 bytes"), "{}", lost.remarks());
    let recorded = lost.recorded();
    assert_eq!(recorded[0].output.last_line.text, b"{\"n\": 7}", "the result is read whole");
}

/// One that has no result anyway is cleaned up by anybody.
#[tokio::test(start_paused = true)]
async fn a_container_that_is_stopped_needs_nobody_who_knows_its_secrets() {
    let mut lost = Lost::running(talks()).await;
    lost.container.occurrence.as_mut().expect("it is told").secrets.push("TOKEN".to_owned());
    sleep(10 * SECOND).await;
    assert_cleaned_up(&lost.recovered(false).await);
    assert!(lost.recorded().is_empty() && lost.is_removed());
    assert_eq!(lost.bed.text(LogStream::Stdout), "");
}

/// During an upgrade: an older release did not say what its result would be recorded as.
#[tokio::test(start_paused = true)]
async fn a_container_of_an_older_release_is_removed_and_its_task_runs_anew() {
    let mut lost = Lost::running(talks()).await.ended(0).await;
    lost.container.occurrence = None;
    assert_cleaned_up(&lost.recovered(false).await);
    assert!(lost.recorded().is_empty() && lost.is_removed());
    assert!(lost.remarks().contains("an older release"), "{}", lost.remarks());
}

/// An output that breaks off is no output.
#[tokio::test(start_paused = true)]
async fn a_result_whose_output_cannot_be_read_is_put_off() {
    let engine = ScriptedEngine::new(ENGINE).image(IMAGE, talks()).trouble(Call::Logs, Trouble::Silent);
    let lost = Lost::on(engine).await.ended(0).await;
    let found = lost.recovered(false).await;
    let Recovered::NotNow { reason } = &found else { panic!("{found:?}") };
    assert!(reason.contains("could not be read to its end"), "{reason}");
    assert!(lost.recorded().is_empty() && !lost.is_removed());
    assert_cleaned_up(&lost.recovered(false).await);
    let recorded = lost.recorded();
    assert!(matches!(&recorded[..], [TaskEnded { output, .. }] if output.complete), "{recorded:?}");
    assert!(lost.is_removed());
}
