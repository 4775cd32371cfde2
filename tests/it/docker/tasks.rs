//! The op `container` with everything real: recipes submitted by the binary, workers that are processes, nodes with
//! agents. Programs that are looked at while they run wait for SIGUSR1, so that no test depends on time.

mod supplied;

use std::{
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use bollard::{models::EventMessage, query_parameters::KillContainerOptionsBuilder};
use futures_util::StreamExt as _;
use leasehold::{
    Worker,
    config::NodeSettings,
    node_agent,
    postgres::{PgStore, audit, read::LogStreamName},
    protocol::{
        domain::{ContainerId, ContainerSpec, JobId, Namespace},
        ports::{ContainerEngine as _, ContainerPlan, ContainerState, ContainerStatus},
    },
    recipe::op::Ops,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::{
    cli::leasehold::Leasehold,
    support::{
        database::{TestDatabase, settings, with_database},
        engine::{IMAGE, TestEngine},
        eventually::eventually,
        proxy::Proxy,
        services,
    },
};

const SOON: Duration = Duration::from_secs(60);

/// Goes on only when it is told to.
const WAIT: &str = "trap 'go=1' USR1; while [ -z \"$go\" ]; do sleep 0.05; done";

/// A database, an engine, and what is started on them.
struct Bench {
    database: TestDatabase,
    leasehold: Leasehold,
    store: PgStore,
    client: Client,
    engine: TestEngine,
    agents: Vec<JoinHandle<()>>,
    workers: Vec<Child>,
    files: Vec<PathBuf>,
}

impl Bench {
    async fn on(engine: u8) -> Self {
        let database = TestDatabase::create().await;
        let leasehold = Leasehold::on(database.url())
            .with("EXECUTION_WORKER_LEASE_DURATION", "6s")
            .with("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "1s")
            .with("EXECUTION_WORKER_STORE_TIMEOUT", "1s")
            .with("EXECUTION_WORKER_RECOVERY_INTERVAL", "1s")
            .with("EXECUTION_WORKER_SHUTDOWN_GRACE", "1s")
            .with("SECRET_OF_TASKS", "tok-s3cret-value");
        let (store, client) = (database.store().await, database.client().await);
        let engine = TestEngine::at(&services::docker_endpoint(engine)).await;
        let (agents, workers, files) = (Vec::new(), Vec::new(), Vec::new());
        Self { database, leasehold, store, client, engine, agents, workers, files }
    }

    async fn node(&mut self, slots: u32) {
        let settings = NodeSettings {
            namespace: Namespace::default(),
            node_id: "n1".to_owned(),
            endpoint: self.engine.endpoint.clone(),
            max_concurrency: slots,
            tls: None,
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_ttl: Duration::from_secs(20),
            lost_after: Duration::from_secs(60),
            orphan_interval: Duration::from_secs(1),
            drain_grace: Duration::from_secs(1),
        };
        let agent = node_agent::run(settings, self.store.clone(), std::future::pending());
        self.agents.push(tokio::spawn(async move { panic!("the agent ended: {:?}", agent.await) }));
        eventually(SOON, "the node is registered", async || {
            let nodes = self.store.node_list(&Namespace::default()).await.unwrap();
            nodes.into_iter().find(|node| node.fresh)
        })
        .await;
    }

    /// The worker's number.
    fn worker(&mut self, name: &str, flags: &[&str]) -> usize {
        let fixed = ["worker", "--worker-id", name, "--poll-interval", "100ms"];
        let has = ["--allocation-cpu", "4", "--allocation-memory", "4Gi", "--secret", "SECRET_OF_TASKS"];
        let mut command = self.leasehold.command(&[&fixed[..], &has, flags].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.workers.push(command.spawn().unwrap());
        self.workers.len() - 1
    }

    fn kill(&mut self, worker: usize) {
        let child = &mut self.workers[worker];
        kill_process(Pid::from_child(child), Signal::KILL).unwrap();
        child.wait().unwrap();
    }

    fn submit(&mut self, recipe: &Value) -> JobId {
        let path = std::env::temp_dir().join(format!("lh-tasks-{}.yaml", uuid::Uuid::new_v4()));
        std::fs::write(&path, recipe.to_string()).unwrap();
        let said = self.leasehold.run(&["submit", "--recipe", path.to_str().unwrap()]);
        assert_eq!(said.code, 0, "{said:?}");
        self.files.push(path);
        JobId(said.out.trim().parse().unwrap())
    }

    async fn ended(&self, job: JobId) -> Value {
        let id = job.to_string();
        eventually(SOON, "the job has ended", async || {
            let shown = self.leasehold.run(&["job", "show", &id, "--json"]).json();
            ["COMPLETED", "FAILED", "CANCELED"].contains(&shown["state"].as_str().unwrap()).then_some(shown)
        })
        .await
    }

    fn results(&self, job: JobId) -> Vec<Value> {
        self.leasehold.run(&["job", "results", &job.to_string(), "--json"]).json_lines()
    }

    async fn containers(&self) -> Vec<ContainerStatus> {
        let fleet = self.store.fleet().await.unwrap();
        self.engine.engine.list(&[("leasehold.fleet".to_owned(), fleet.to_string())]).await.unwrap()
    }

    async fn running(&self) -> Vec<ContainerStatus> {
        let all = self.containers().await.into_iter();
        all.filter(|status| matches!(status.state, ContainerState::Running { .. })).collect()
    }

    async fn runs(&self, count: usize) -> Vec<ContainerStatus> {
        eventually(SOON, "the containers run", async || {
            let running = self.running().await;
            (running.len() == count).then_some(running)
        })
        .await
    }

    /// Lets a program that waits go on. One that does not listen yet is told again.
    async fn go(&self, id: &ContainerId) {
        eventually(SOON, "the program goes on", async || {
            let options = KillContainerOptionsBuilder::default().signal("USR1").build();
            let _ = self.engine.stranger.kill_container(id.as_str(), Some(options)).await;
            let status = self.engine.engine.inspect(id).await.unwrap();
            (!status.is_some_and(|status| matches!(status.state, ContainerState::Running { .. })))
                .then_some(())
        })
        .await;
    }

    async fn slots(&self) -> i64 {
        self.client.query_one("select count(*) from leasehold.node_slots", &[]).await.unwrap().get(0)
    }

    async fn log(&self, job: JobId) -> String {
        let rows = self.store.read_logs(&Namespace::default(), job, 0, 1000).await.unwrap();
        let out = rows.iter().filter(|row| row.stream == LogStreamName::Stdout);
        String::from_utf8(out.flat_map(|row| row.data.clone()).collect()).unwrap()
    }

    async fn variable(&self, id: &ContainerId, name: &str) -> String {
        let shown = self.engine.stranger.inspect_container(id.as_str(), None).await.unwrap();
        let env = shown.config.unwrap().env.unwrap();
        let found = env.iter().find_map(|item| item.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("{name} is not in {env:?}")).to_owned()
    }

    /// Nothing is left on the engine, no slot is taken, and the books are in order.
    async fn finish(self) {
        eventually(SOON, "no container is left", async || self.containers().await.is_empty().then_some(()))
            .await;
        assert_eq!(self.slots().await, 0);
        let placed = "select count(*) from leasehold.task_containers";
        assert_eq!(self.client.query_one(placed, &[]).await.unwrap().get::<_, i64>(0), 0);
        let findings = audit::run(&self.client).await.unwrap();
        assert!(findings.is_empty(), "{findings:#?}");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.agents.iter().for_each(JoinHandle::abort);
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A node of a recipe that runs a script in a container.
fn script(id: &str, script: &str) -> Value {
    json!({
        "id": id,
        "op": "container",
        "inputs": {
            "image": IMAGE, "command": ["sh", "-c", script], "pull": "never", "network": "none", "stop_grace_ms": 500
        }
    })
}

fn with(mut node: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        node[key] = value.clone();
    }
    node
}

fn inputs(mut node: Value, more: &Value) -> Value {
    node["inputs"] = with(node["inputs"].clone(), more);
    node
}

/// The last line is the output; what the task needs are the container's limits; what it prints is the job's output, with
/// secrets blotted out. A container of a task that is over is an orphan, also while its job runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_runs_in_a_container_with_the_limits_that_it_needs() {
    let mut bench = Bench::on(1).await;
    bench.node(4).await;
    bench.worker("w1", &[]);
    let print =
        format!("echo \"$TOKEN\"; {WAIT}; echo '{{\"key\": \"'$LEASEHOLD_TASK_KEY'\", \"n\": 1.50}}'");
    let first =
        inputs(script("first", &print), &json!({ "env": { "TOKEN": "${{ secrets.SECRET_OF_TASKS }}" } }));
    let needs = json!({ "execution_needs": { "resources": { "cpu": "500m", "memory": "64Mi" } } });
    let second = script("second", "echo \"seen: $1\"; echo '${{ sequence.first.outputs.n }}'");
    let job = bench.submit(&json!({ "id": "limits", "sequence": [with(first, &needs), second] }));

    let running = bench.runs(1).await.remove(0);
    assert_eq!(bench.slots().await, 1);
    let shown = bench.engine.stranger.inspect_container(running.id.as_str(), None).await.unwrap();
    let limits = shown.host_config.unwrap();
    assert_eq!((limits.memory, limits.nano_cpus), (Some(64 << 20), Some(500_000_000)));
    assert_eq!(bench.variable(&running.id, "LEASEHOLD_JOB_ID").await, job.to_string());
    assert_eq!(bench.variable(&running.id, "LEASEHOLD_TASK").await, "first");
    let epoch = bench.variable(&running.id, "LEASEHOLD_FENCING_EPOCH").await;
    let label = |name: &str| running.labels.iter().find(|(key, _)| key == name).unwrap().1.clone();
    assert_eq!((label("leasehold.epoch"), label("leasehold.path")), (epoch, "first".to_owned()));

    // One that a task of this lease has left behind.
    let mut labels = running.labels.clone();
    labels
        .iter_mut()
        .filter(|(key, _)| key == "leasehold.task")
        .for_each(|(_, task)| "over".clone_into(task));
    let left = ContainerPlan {
        name: format!("{}-over", running.name),
        labels,
        spec: ContainerSpec {
            image: IMAGE.to_owned(),
            command: vec!["true".to_owned()],
            network: Some("none".to_owned()),
            ..ContainerSpec::default()
        },
        env: Vec::new(),
    };
    let left = bench.engine.engine.create(&left).await.unwrap();
    eventually(SOON, "the orphan is removed", async || {
        bench.engine.engine.inspect(&left).await.unwrap().is_none().then_some(())
    })
    .await;
    assert_eq!(bench.running().await.len(), 1, "the task's own is left alone");

    bench.go(&running.id).await;
    let ended = bench.ended(job).await;
    assert_eq!(ended["state"], "COMPLETED", "{ended}");
    assert_eq!(ended["output"]["second"], json!(1.5));
    let events = bench.results(job);
    assert_eq!(events[0]["output"]["key"].as_str().map(str::len), Some(32), "{events:?}");
    let log = bench.log(job).await;
    assert!(log.contains("****************\n") && log.contains("seen: ") && !log.contains("s3cret"), "{log}");
    bench.finish().await;
}

/// No node, then one: no attempt is used and nothing has failed. A node of another platform is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_without_a_node_that_fits_waits_for_one() {
    let mut bench = Bench::on(2).await;
    bench.worker("w1", &[]);
    let job = bench.submit(&json!({ "id": "late", "sequence": [script("x", "echo 7")] }));
    let why = async |bench: &Bench, job: JobId, words: &str| {
        eventually(SOON, "it says why", async || {
            let said = bench.leasehold.run(&["job", "why", &job.to_string()]).out;
            (said.contains("PENDING") && said.contains(words)).then_some(said)
        })
        .await
    };
    why(&bench, job, "there is no runtime node; start `leasehold node`").await;
    bench.node(2).await;
    let ended = bench.ended(job).await;
    assert_eq!(
        (&ended["state"], &ended["attempt"], &ended["output"]),
        (&json!("COMPLETED"), &json!(1), &json!({ "x": 7 }))
    );

    bench.worker("arm", &["--allocation-platform", "linux/arm64"]);
    let platform = json!({ "platform": "linux/arm64" });
    let job = bench.submit(&json!({ "id": "arm", "execution": platform, "sequence": [script("x", "true")] }));
    let said = why(&bench, job, "none of 1 usable runtime node had that").await;
    assert!(said.contains("platform=linux/arm64") && said.contains("looked for again at"), "{said}");
    bench.leasehold.run(&["job", "cancel", &job.to_string()]);
    assert_eq!(bench.ended(job).await["state"], "CANCELED");
    bench.finish().await;
}

/// The codes are those of CONTAINER jobs, and `catch` sees them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_wrong_in_a_container_is_a_failure_that_can_be_caught() {
    let mut bench = Bench::on(1).await;
    bench.node(4).await;
    bench.worker("w1", &["--allow-commands"]);
    let cases = [
        ("code", script("code", "echo no >&2; exit 3"), "3"),
        ("unknown", inputs(script("unknown", ""), &json!({ "command": ["no-such-program"] })), "127"),
        (
            "image",
            inputs(script("image", "true"), &json!({ "image": "leasehold-test/none:1" })),
            "image_not_found",
        ),
        ("slow", inputs(script("slow", "sleep 600"), &json!({ "timeout": "500ms" })), "timeout"),
        ("bad", inputs(script("bad", "true"), &json!({ "command": "${{ 3 }}" })), "bad_input"),
        // RQ-13: below what engines accept, and told before any engine is asked.
        (
            "tiny",
            with(script("tiny", "true"), &json!({ "execution_needs": { "resources": { "memory": "1Ki" } } })),
            "bad_input",
        ),
        (
            "slice",
            with(script("slice", "true"), &json!({ "execution_needs": { "resources": { "cpu": "1m" } } })),
            "bad_input",
        ),
        // DK-15, RP-15: no line break behind the last line, and one that no database could keep.
        ("nul", script("nul", "printf '{\"a\":\"\\\\u0000\"}'"), "bad_output"),
        ("null", inputs(script("null", "exit 5"), &json!({ "env": null, "timeout": null })), "5"),
        (
            "oom",
            with(
                script("oom", "tail /dev/zero"),
                &json!({ "execution_needs": { "resources": { "memory": "16Mi" } } }),
            ),
            "oom",
        ),
    ];
    let caught = |id: &str| {
        json!({ "catch": {
            "id": format!("{id}-caught"), "op": "command", "inputs": { "argv": ["echo", "\"${{ error.code }}\""] }
        } })
    };
    let nodes: Vec<Value> = cases.iter().map(|(id, node, _)| with(node.clone(), &caught(id))).collect();
    let job = bench.submit(&json!({ "id": "failing", "sequence": nodes }));
    let ended = bench.ended(job).await;
    assert_eq!(ended["state"], "COMPLETED", "{ended} {:#?}", bench.results(job));
    let output: Value = ended["output"].clone();
    for (id, _, code) in cases {
        let seen = output[id].as_str().map_or_else(|| output[id].to_string(), str::to_owned);
        assert_eq!(seen, code, "{id}: {output}");
    }
    let told = bench.results(job).iter().any(|event| event.to_string().contains("exit code 3: no"));
    assert!(told, "{:#?}", bench.results(job));
    bench.finish().await;
}

/// L9: two slots, three branches. A branch that fails ends what its siblings run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_have_a_container_each_as_far_as_there_are_slots() {
    let mut bench = Bench::on(2).await;
    bench.node(2).await;
    bench.worker("w1", &[]);
    let branches: Vec<Value> =
        (1..=3).map(|n| script(&format!("b{n}"), &format!("{WAIT}; echo {n}"))).collect();
    let job = bench.submit(&json!({ "id": "fan", "parallel": branches }));
    let running = bench.runs(2).await;
    assert_eq!(bench.slots().await, 2);
    for container in running {
        bench.go(&container.id).await;
    }
    eventually(SOON, "the third has had its turn", async || {
        for container in bench.running().await {
            bench.go(&container.id).await;
        }
        (bench.results(job).len() == 3).then_some(())
    })
    .await;
    let ended = bench.ended(job).await;
    assert_eq!(ended["output"], json!({ "b1": 1, "b2": 2, "b3": 3 }), "{ended}");
    assert_eq!(ended["attempt"], 1);

    let bad = script("bad", &format!("{WAIT}; exit 4"));
    let job = bench.submit(&json!({ "id": "fails", "parallel": [script("long", "sleep 600"), bad] }));
    for container in bench.runs(2).await {
        let path = container.labels.iter().find(|(key, _)| key == "leasehold.path").unwrap().1.clone();
        if path == "bad" {
            bench.go(&container.id).await;
        }
    }
    let ended = bench.ended(job).await;
    assert_eq!((&ended["state"], &ended["failure"]["code"]), (&json!("FAILED"), &json!("4")), "{ended}");
    let canceled = bench.results(job).iter().any(|event| event["outcome"] == "canceled");
    assert!(canceled, "{:#?}", bench.results(job));
    bench.finish().await;
}

async fn engine_events(bench: &Bench) -> Vec<EventMessage> {
    let fleet = bench.store.fleet().await.unwrap();
    let filters = std::collections::HashMap::from([("label", vec![format!("leasehold.fleet={fleet}")])]);
    let options = bollard::query_parameters::EventsOptionsBuilder::default()
        .since("0")
        .until(&(chrono::Utc::now().timestamp() + 1).to_string())
        .filters(&filters)
        .build();
    let events = bench.engine.stranger.events(Some(options));
    events.map(|event| event.unwrap()).collect().await
}

/// L5, L7: killed in the middle of two containers. Both are gone before either task runs anew, as the engine's own
/// record says, under the same key and a later epoch. Cancelled then, nothing of it is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_containers_of_a_killed_worker_are_gone_before_their_tasks_run_anew() {
    let mut bench = Bench::on(1).await;
    bench.node(2).await;
    let first = bench.worker("w1", &[]);
    let branches = [script("a", "trap '' TERM; sleep 600"), script("b", "sleep 600")];
    let job = bench.submit(&json!({ "id": "crash", "parallel": branches }));
    let path = |status: &ContainerStatus| {
        status.labels.iter().find(|(key, _)| key == "leasehold.path").unwrap().1.clone()
    };
    let epoch = |status: &ContainerStatus| -> i64 {
        status.labels.iter().find(|(key, _)| key == "leasehold.epoch").unwrap().1.parse().unwrap()
    };
    let mut before = bench.runs(2).await;
    before.sort_by_key(&path);
    let mut keys = Vec::new();
    for status in &before {
        keys.push(bench.variable(&status.id, "LEASEHOLD_TASK_KEY").await);
    }
    bench.worker("w2", &[]);
    bench.kill(first);
    let mut after = eventually(SOON, "both run anew", async || {
        let running = bench.running().await;
        let anew = running.len() == 2 && running.iter().all(|status| epoch(status) > epoch(&before[0]));
        anew.then_some(running)
    })
    .await;
    after.sort_by_key(&path);
    for (status, key) in after.iter().zip(&keys) {
        assert_eq!(bench.variable(&status.id, "LEASEHOLD_TASK_KEY").await, *key);
    }
    assert_eq!(bench.slots().await, 2);
    bench.leasehold.run(&["job", "cancel", &job.to_string()]);
    assert_eq!(bench.ended(job).await["state"], "CANCELED");
    // The ledger is the engine's own.
    let events = engine_events(&bench).await;
    let when = |id: &ContainerId, what: &str| {
        let found = events.iter().find(|event| {
            event.action.as_deref() == Some(what)
                && event.actor.as_ref().and_then(|actor| actor.id.as_deref()) == Some(id.as_str())
        });
        found.and_then(|event| event.time_nano).unwrap_or_else(|| panic!("no {what} of {id} in {events:#?}"))
    };
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(path(old), path(new));
        assert!(when(&old.id, "die") < when(&new.id, "start"), "{} ran twice at once", path(old));
    }
    bench.finish().await;
}

/// E1: both containers end by themselves while nobody holds the lease. What they did is recorded by
/// whoever takes the job over, as the engine's own record says that neither ran twice; and the recipe goes on from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_result_of_a_container_that_ended_while_nobody_held_the_lease_is_recorded() {
    let mut bench = Bench::on(2).await;
    bench.node(2).await;
    let first = bench.worker("w1", &[]);
    let good = format!(
        "echo \"early $TOKEN\"; {WAIT}; echo \"late $TOKEN\"; echo '{{\"n\": 1.50, \"t\": \"'$TOKEN'\"}}'"
    );
    let good =
        inputs(script("good", &good), &json!({ "env": { "TOKEN": "${{ secrets.SECRET_OF_TASKS }}" } }));
    let bad = with(
        script("bad", &format!("{WAIT}; echo \"no such luck\" >&2; exit 3")),
        &json!({ "catch": script("caught", "echo '${{ error.code }}'") }),
    );
    let both = json!({ "id": "both", "parallel": [good, bad] });
    let last = script("last", "echo '${{ sequence.both.outputs.good.n }}'");
    let job = bench.submit(&json!({ "id": "found", "sequence": [both, last] }));
    let running = bench.runs(2).await;
    eventually(SOON, "the first words are stored", async || {
        bench.log(job).await.contains("early").then_some(())
    })
    .await;
    bench.kill(first);
    for container in &running {
        bench.go(&container.id).await;
    }
    bench.worker("w2", &[]);
    let ended = bench.ended(job).await;
    assert_eq!(ended["state"], "COMPLETED", "{ended} {:#?}", bench.results(job));
    let output = json!({ "both": { "good": { "n": 1.5, "t": "***" }, "bad": 3 }, "last": 1.5 });
    assert_eq!(ended["output"], output);
    let results = bench.results(job);
    let at = |path: &str| {
        results.iter().find(|event| event["path"] == path).unwrap_or_else(|| panic!("{results:#?}"))
    };
    assert_eq!((&at("both/good")["worker"], &at("both/bad")["worker"]), (&json!("w2"), &json!("w2")));
    assert!(at("both/bad").to_string().contains("exit code 3: no such luck"), "{results:#?}");
    // The engine's own record: both, `caught` and `last`.
    let events = engine_events(&bench).await;
    let starts = events.iter().filter(|event| event.action.as_deref() == Some("start")).count();
    assert_eq!(starts, 4, "{events:#?}");
    let log = bench.log(job).await;
    let lines = [
        "early ****************\n",
        "late ****************\n",
        "{\"n\": 1.50, \"t\": \"****************\"}\n",
    ];
    assert!(lines.iter().all(|line| log.matches(line).count() == 1) && !log.contains("s3cret"), "{log}");
    bench.finish().await;
}

/// L5: a recipe's worker that cannot renew ends all its containers before the lease can be anybody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_containers_of_tasks_are_dead_before_their_lease_expires() {
    let mut bench = Bench::on(2).await;
    bench.node(4).await;
    let proxy = Proxy::before(&services::database_url()).await;
    let url = with_database(&proxy.url(&services::database_url()), bench.database.name());
    let mut database = settings(&url);
    database.store_timeout = Duration::from_secs(1);
    let worker =
        Worker::builder().database_settings(database).containers(true).recipes(Ops::new()).configure(
            |settings| {
                settings.lease = Duration::from_secs(12);
                settings.renew_interval = Duration::from_millis(1500);
                settings.safety_margin = Duration::from_millis(1500);
                settings.store_timeout = Duration::from_secs(1);
                settings.shutdown_grace = Duration::from_secs(1);
            },
        );
    let worker = worker.build().await.unwrap();
    let task = tokio::spawn(worker.run_until(std::future::pending()));
    let deaf = "trap '' TERM; while :; do echo on; sleep 0.2; done";
    let job = bench.submit(&json!({ "id": "fenced", "parallel": [script("a", deaf), script("b", deaf)] }));
    let running = bench.runs(2).await;
    proxy.stall(true);
    eventually(SOON, "both are dead", async || bench.running().await.is_empty().then_some(())).await;
    let sql = "select lease_expires_at > clock_timestamp() from leasehold.leases where job_id = $1";
    let in_time: bool = bench.client.query_one(sql, &[&job.0]).await.unwrap().get(0);
    assert!(in_time, "they outlived their lease: {running:?}");
    task.abort();
    // Somebody else takes it over.
    bench.worker("w2", &[]);
    bench.leasehold.run(&["job", "cancel", &job.to_string()]);
    assert_eq!(bench.ended(job).await["state"], "CANCELED");
    bench.finish().await;
}
