//! CONTAINER jobs through everything: submitted to PostgreSQL, placed on a node that its agent keeps fresh, run
//! by a worker on a real engine, told by their end.

use std::time::Duration;

use bollard::{
    models::ContainerCreateBody,
    query_parameters::{
        CreateContainerOptionsBuilder, KillContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    },
};
use leasehold::{
    Worker,
    config::NodeSettings,
    docker::DockerEngine,
    node_agent,
    postgres::{
        PgStore,
        cancel::CancelAnswer,
        read::{JobDetail, LogStreamName},
    },
    protocol::{
        domain::{ContainerSpec, FailureKind, JobDefinition, JobId, JobState, Namespace, NewJob, PullPolicy},
        ports::{ContainerEngine as _, ContainerStatus},
    },
    worker::{RunError, WorkerExit},
};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::support::{
    database::TestDatabase,
    engine::{IMAGE, PrivateEngine, TestEngine},
    eventually::eventually,
    services,
};

const SOON: Duration = Duration::from_secs(40);

/// One database, one worker, and nodes as they are added.
pub(super) struct Fleet {
    pub(super) database: TestDatabase,
    pub(super) store: PgStore,
    agents: Vec<JoinHandle<()>>,
    stop: Option<oneshot::Sender<()>>,
    worker: JoinHandle<Result<WorkerExit, RunError>>,
}

impl Fleet {
    async fn without_nodes() -> Self {
        Self::with_grace(Duration::from_secs(2)).await
    }

    /// Without nodes, and with this grace for what runs when the worker is told to stop.
    async fn with_grace(grace: Duration) -> Self {
        let database = TestDatabase::create().await;
        let worker = Worker::builder()
            .database_settings(database.settings())
            .containers(true)
            .configure(move |settings| {
                settings.concurrency = 8;
                settings.lease = Duration::from_secs(10);
                settings.renew_interval = Duration::from_secs(2);
                settings.safety_margin = Duration::from_secs(1);
                settings.store_timeout = Duration::from_secs(2);
                settings.shutdown_grace = grace;
            })
            .build()
            .await
            .unwrap();
        let store = database.store().await;
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = tokio::spawn(async move {
            worker
                .run_until(async {
                    let _ = stopped.await;
                })
                .await
        });
        Self { database, store, agents: Vec::new(), stop: Some(stop), worker }
    }

    pub(super) async fn on(endpoint: &str) -> Self {
        let mut fleet = Self::without_nodes().await;
        fleet.add_node("n1", endpoint).await;
        fleet
    }

    async fn add_node(&mut self, name: &str, endpoint: &str) {
        // So that the image is there.
        TestEngine::at(endpoint).await;
        let settings = NodeSettings {
            namespace: Namespace::default(),
            node_id: name.to_owned(),
            endpoint: endpoint.to_owned(),
            max_concurrency: 8,
            tls: None,
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_ttl: Duration::from_secs(10),
            lost_after: Duration::from_secs(60),
            orphan_interval: Duration::from_secs(30),
            drain_grace: Duration::from_secs(1),
        };
        let agent = node_agent::run(settings, self.store.clone(), std::future::pending());
        self.agents.push(tokio::spawn(async move { panic!("the agent ended: {:?}", agent.await) }));
        eventually(SOON, "the node is registered", async || {
            let nodes = self.store.node_list(&Namespace::default()).await.unwrap();
            nodes.into_iter().find(|node| node.id.as_str() == name && node.fresh)
        })
        .await;
    }

    pub(super) async fn submit(&self, job: NewJob) -> JobId {
        self.store.submit(&job).await.unwrap().job
    }

    async fn detail(&self, job: JobId) -> JobDetail {
        self.store.show_job(&Namespace::default(), job).await.unwrap().expect("the job exists")
    }

    pub(super) async fn ends(&self, job: JobId) -> JobDetail {
        eventually(SOON, "the job has ended", async || {
            Some(self.detail(job).await).filter(|detail| detail.row.state.is_terminal())
        })
        .await
    }

    /// Waits until the job's program has said something.
    pub(super) async fn speaks(&self, job: JobId) {
        eventually(SOON, "the program writes", async || {
            (!self.log(job, LogStreamName::Stdout).await.is_empty()).then_some(())
        })
        .await;
    }

    pub(super) async fn log(&self, job: JobId, stream: LogStreamName) -> Vec<u8> {
        let (mut bytes, mut after) = (Vec::new(), 0);
        loop {
            let rows = self.store.read_logs(&Namespace::default(), job, after, 1000).await.unwrap();
            let Some(last) = rows.last() else { return bytes };
            after = last.seq;
            bytes.extend(rows.iter().filter(|row| row.stream == stream).flat_map(|row| row.data.clone()));
        }
    }

    /// The fleet's containers on an engine.
    async fn containers(&self, endpoint: &str) -> Vec<ContainerStatus> {
        let fleet = self.store.fleet().await.unwrap();
        let engine = DockerEngine::connect(endpoint, None).unwrap();
        engine.list(&[("leasehold.fleet".to_owned(), fleet.to_string())]).await.unwrap()
    }

    /// Drains the worker and checks that nothing is left.
    pub(super) async fn finish(mut self, endpoint: &str) {
        self.stop.take().expect("finished once").send(()).expect("the worker runs");
        let exit =
            tokio::time::timeout(SOON, &mut self.worker).await.expect("the drain ends").unwrap().unwrap();
        assert!(matches!(exit, WorkerExit::Drained(_)), "{exit:?}");
        let left = self.containers(endpoint).await;
        assert!(left.is_empty(), "containers were left behind: {left:#?}");
        for node in self.store.node_list(&Namespace::default()).await.unwrap() {
            assert_eq!(node.slots_used, 0, "slots were left taken");
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for agent in &self.agents {
            agent.abort();
        }
        self.worker.abort();
    }
}

pub(super) fn script(script: &str) -> NewJob {
    container(ContainerSpec {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..ContainerSpec::default()
    })
}

pub(super) fn container(mut spec: ContainerSpec) -> NewJob {
    if spec.image.is_empty() {
        spec.image = IMAGE.to_owned();
    }
    spec.network = Some("none".to_owned());
    spec.stop_grace_ms.get_or_insert(1000);
    let mut job = NewJob::ad_hoc(JobDefinition::Container(spec));
    job.retry.backoff_ms = Some(0);
    job
}

/// One try only, whatever happens.
fn once(mut job: NewJob) -> NewJob {
    job.retry.max_system = Some(1);
    job
}

fn failure(detail: &JobDetail) -> (FailureKind, &str, Option<i32>) {
    let failure = detail.row.failure.as_ref().expect("a failure");
    (failure.kind.expect("a kind"), failure.code.as_deref().expect("a code"), detail.row.exit_code)
}

#[tokio::test]
async fn jobs_end_as_their_programs_do_and_leave_nothing() {
    let endpoint = services::docker_endpoint(1);
    let fleet = Fleet::on(&endpoint).await;
    let own = script("echo out; echo err >&2; exit 3");
    let fine =
        script("echo $LEASEHOLD_JOB_ID $LEASEHOLD_FENCING_EPOCH $LEASEHOLD_ATTEMPT $LEASEHOLD_NAMESPACE");
    let mut hungry = ContainerSpec { memory_bytes: Some(32 << 20), ..ContainerSpec::default() };
    hungry.command = vec!["tail".to_owned(), "/dev/zero".to_owned()];
    let missing = ContainerSpec { command: vec!["nope".to_owned()], ..ContainerSpec::default() };
    let nowhere = ContainerSpec {
        image: "leasehold-test/none:1".to_owned(),
        pull: PullPolicy::Never,
        ..ContainerSpec::default()
    };
    let mut slow = script("echo ready; sleep 60");
    slow.timeout_ms = Some(1000);
    let mut jobs = Vec::new();
    for job in [own, fine, container(hungry), container(missing), container(nowhere), slow] {
        jobs.push(fleet.submit(job).await);
    }
    let mut ends = Vec::new();
    for job in &jobs {
        ends.push(fleet.ends(*job).await);
    }

    assert_eq!(failure(&ends[0]), (FailureKind::User, "3", Some(3)));
    assert_eq!(fleet.log(jobs[0], LogStreamName::Stdout).await, b"out\n");
    assert_eq!(fleet.log(jobs[0], LogStreamName::Stderr).await, b"err\n");
    assert_eq!(ends[0].row.node.as_deref(), Some("n1"));

    assert_eq!((ends[1].row.state, ends[1].row.exit_code), (JobState::Completed, Some(0)));
    let told = String::from_utf8(fleet.log(jobs[1], LogStreamName::Stdout).await).unwrap();
    assert_eq!(told, format!("{} {} 1 default\n", jobs[1], ends[1].row.epoch));

    assert_eq!(failure(&ends[2]), (FailureKind::User, "oom", Some(137)));
    assert_eq!(failure(&ends[3]).0, FailureKind::User);
    assert_eq!(failure(&ends[3]).1, "127");
    assert_eq!(failure(&ends[4]).0, FailureKind::User);
    assert_eq!(failure(&ends[4]).1, "image_not_found");
    assert_eq!(failure(&ends[5]).0, FailureKind::Timeout);
    for end in &ends {
        assert_eq!((end.row.attempt, end.leases.len()), (1, 1), "{:?}", end.row);
    }
    fleet.finish(&endpoint).await;
}

/// DK-15, DK-17, DK-21
#[tokio::test]
async fn output_is_stored_byte_for_byte() {
    let endpoint = services::docker_endpoint(2);
    let fleet = Fleet::on(&endpoint).await;
    let job = fleet
        .submit(script(
            "head -c 100001 /dev/zero | tr '\\0' a; printf '\\n\\377\\376\\200\\000é\\nlast'; echo -n x >&2",
        ))
        .await;
    assert_eq!(fleet.ends(job).await.row.state, JobState::Completed);
    let expected = [&vec![b'a'; 100_001][..], b"\n\xff\xfe\x80\0", "é\nlast".as_bytes()].concat();
    assert!(fleet.log(job, LogStreamName::Stdout).await == expected);
    assert_eq!(fleet.log(job, LogStreamName::Stderr).await, b"x");
    fleet.finish(&endpoint).await;
}

/// DK-11, DK-13
#[tokio::test]
async fn a_cancel_stops_the_container_also_when_somebody_has_paused_it() {
    let endpoint = services::docker_endpoint(1);
    let fleet = Fleet::on(&endpoint).await;
    let stranger = TestEngine::at(&endpoint).await.stranger;
    let polite =
        fleet.submit(script("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done")).await;
    let paused = fleet.submit(script("echo ready; while :; do sleep 0.1; done")).await;
    fleet.speaks(polite).await;
    fleet.speaks(paused).await;
    let id = fleet.detail(paused).await.row.container.expect("it is attached");
    stranger.pause_container(&id).await.unwrap();
    for job in [polite, paused] {
        let answer =
            fleet.store.request_cancel(&Namespace::default(), job, Duration::from_secs(1)).await.unwrap();
        assert!(matches!(answer, CancelAnswer::Requested { .. }), "{answer:?}");
    }
    for job in [polite, paused] {
        assert_eq!(fleet.ends(job).await.row.state, JobState::Canceled);
    }
    assert_eq!(fleet.log(polite, LogStreamName::Stdout).await, b"ready\nbye\n");
    let remark = String::from_utf8(fleet.log(paused, LogStreamName::System).await).unwrap();
    assert!(remark.contains("paused"), "{remark}");
    fleet.finish(&endpoint).await;
}

/// RC-17
#[tokio::test]
async fn a_container_that_somebody_kills_or_removes_is_no_fault_of_its_program() {
    let endpoint = services::docker_endpoint(1);
    let fleet = Fleet::on(&endpoint).await;
    let stranger = TestEngine::at(&endpoint).await.stranger;
    let program = "echo ready; while :; do sleep 0.1; done";
    let killed = fleet.submit(once(script(program))).await;
    let removed = fleet.submit(once(script(program))).await;
    // It is tried again, and then left alone.
    let again = fleet.submit(script("[ $LEASEHOLD_ATTEMPT = 2 ] && exit 0; echo ready; sleep 60")).await;
    for job in [killed, removed, again] {
        fleet.speaks(job).await;
    }
    for job in [killed, again] {
        let id = fleet.detail(job).await.row.container.unwrap();
        let options = KillContainerOptionsBuilder::new().signal("KILL").build();
        stranger.kill_container(&id, Some(options)).await.unwrap();
    }
    let id = fleet.detail(removed).await.row.container.unwrap();
    let options = RemoveContainerOptionsBuilder::new().force(true).build();
    stranger.remove_container(&id, Some(options)).await.unwrap();

    assert_eq!(failure(&fleet.ends(killed).await).0, FailureKind::System);
    assert_eq!(failure(&fleet.ends(killed).await).1, "killed");
    let gone = fleet.ends(removed).await;
    assert_eq!(failure(&gone).0, FailureKind::System);
    assert_eq!(failure(&gone).1, "container_gone", "{:?}", gone.row);
    let second = fleet.ends(again).await;
    assert_eq!((second.row.state, second.row.attempt), (JobState::Completed, 2));
    assert_eq!(second.failures.system, 1);
    fleet.finish(&endpoint).await;
}

/// DK-05
#[tokio::test]
async fn a_strangers_container_of_the_jobs_name_costs_a_try_and_not_the_job() {
    let endpoint = services::docker_endpoint(1);
    let mut fleet = Fleet::without_nodes().await;
    // No node yet, so the job waits until its name is taken.
    let job = fleet.submit(script("exit 0")).await;
    let short = fleet.store.fleet().await.unwrap().simple().to_string()[..8].to_owned();
    let name = format!("leasehold-{short}-{job}-1");
    let stranger = TestEngine::at(&endpoint).await.stranger;
    let options = CreateContainerOptionsBuilder::new().name(&name).build();
    let body = ContainerCreateBody {
        image: Some(IMAGE.to_owned()),
        cmd: Some(vec!["true".to_owned()]),
        ..ContainerCreateBody::default()
    };
    let foreign = stranger.create_container(Some(options), body).await.unwrap().id;

    fleet.add_node("n1", &endpoint).await;
    let end = fleet.ends(job).await;
    assert_eq!((end.row.state, end.row.attempt), (JobState::Completed, 2), "{:?}", end.row);
    let first = end.leases.first().unwrap();
    let why = serde_json::to_string(first).unwrap();
    assert!(why.contains(&name), "the history says which name is in the way: {why}");
    assert!(
        stranger.inspect_container(&foreign, None).await.is_ok(),
        "the stranger's container is untouched"
    );
    stranger.remove_container(&foreign, None).await.unwrap();
    fleet.finish(&endpoint).await;
}

#[tokio::test]
async fn two_engines_share_the_work_and_a_drain_gives_back_what_runs() {
    let (one, two) = (services::docker_endpoint(1), services::docker_endpoint(2));
    let mut fleet = Fleet::on(&one).await;
    fleet.add_node("n2", &two).await;
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(fleet.submit(script("echo ready; sleep 60")).await);
    }
    let mut nodes = Vec::new();
    for job in &jobs {
        fleet.speaks(*job).await;
        nodes.push(fleet.detail(*job).await.row.node.unwrap());
    }
    nodes.sort();
    assert_eq!(nodes, ["n1", "n1", "n2", "n2"], "least loaded first");
    assert_eq!((fleet.containers(&one).await.len(), fleet.containers(&two).await.len()), (2, 2));

    let store = fleet.store.clone();
    fleet.stop.take().unwrap().send(()).unwrap();
    let exit = tokio::time::timeout(SOON, &mut fleet.worker).await.expect("the drain ends").unwrap().unwrap();
    assert!(matches!(exit, WorkerExit::Drained(_)), "{exit:?}");
    for job in jobs {
        let detail = store.show_job(&Namespace::default(), job).await.unwrap().unwrap();
        assert!(matches!(detail.row.state, JobState::Pending | JobState::Queued), "{:?}", detail.row);
        let failures = detail.failures;
        assert_eq!((failures.user, failures.system, failures.timeout), (0, 0, 0), "{:?}", detail.row);
    }
    assert!(fleet.containers(&one).await.is_empty() && fleet.containers(&two).await.is_empty());
}

/// DK-29
#[tokio::test]
async fn a_daemons_restart_is_survived_with_live_restore_and_is_nobodys_exit_without() {
    for (live_restore, kind) in [(true, None), (false, Some(FailureKind::System))] {
        let mut engine = PrivateEngine::start(if live_restore {
            &["--live-restore"]
        } else {
            &["--shutdown-timeout", "3"]
        })
        .await;
        let fleet = Fleet::on(&engine.endpoint()).await;
        // Told to stop by its daemon it pretends to have succeeded.
        let program =
            "trap 'exit 0' TERM; i=0; while [ $i -lt 50 ]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 5";
        let job = fleet.submit(once(script(program))).await;
        fleet.speaks(job).await;
        engine.stop();
        engine.boot().await;
        let end = fleet.ends(job).await;
        match kind {
            None => {
                assert_eq!(failure(&end), (FailureKind::User, "5", Some(5)), "{:?}", end.row);
                let expected: String = (0..50).map(|i| format!("{i}\n")).collect();
                let got = fleet.log(job, LogStreamName::Stdout).await;
                assert_eq!(String::from_utf8_lossy(&got), expected, "no gap, nothing twice");
            }
            Some(kind) => {
                assert_eq!((failure(&end).0, failure(&end).1), (kind, "engine_lost"), "{:?}", end.row);
            }
        }
        fleet.finish(&engine.endpoint()).await;
    }
}

/// SH-03: programs that end by themselves while the worker drains, well, badly and by a signal.
#[tokio::test]
async fn real_exits_during_a_drain_are_recorded() {
    let endpoint = services::docker_endpoint(2);
    let mut fleet = Fleet::with_grace(Duration::from_secs(30)).await;
    fleet.add_node("n1", &endpoint).await;
    let mut jobs = Vec::new();
    for code in [1, 0, 137] {
        // Long enough that all of them run when the drain begins.
        jobs.push(fleet.submit(once(script(&format!("echo ready; sleep 4; exit {code}")))).await);
    }
    for job in &jobs {
        fleet.speaks(*job).await;
    }
    for job in &jobs {
        assert_eq!(fleet.detail(*job).await.row.state, JobState::Running, "it ended before the drain began");
    }
    fleet.stop.take().unwrap().send(()).unwrap();
    let exit = tokio::time::timeout(SOON, &mut fleet.worker).await.expect("the drain ends").unwrap().unwrap();
    assert!(matches!(exit, WorkerExit::Drained(_)), "{exit:?}");
    let mut ends = Vec::new();
    for job in jobs {
        ends.push(fleet.detail(job).await);
    }
    assert_eq!(failure(&ends[0]), (FailureKind::User, "1", Some(1)), "{:?}", ends[0].row);
    assert_eq!((ends[1].row.state, ends[1].row.exit_code), (JobState::Completed, Some(0)));
    // As a SIGKILL that nobody of ours sent: an engine tells no more than 137.
    assert_eq!(failure(&ends[2]), (FailureKind::System, "killed", None), "{:?}", ends[2].row);
    assert!(fleet.containers(&endpoint).await.is_empty());
    for end in &ends {
        assert_eq!((end.row.attempt, end.leases.len()), (1, 1), "{:?}", end.row);
    }
}
