//! Every way to run a task stands behind the same guard.

use std::{
    any::Any,
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use leasehold::{
    config::{Effective, Sources},
    protocol::{
        domain::{JobDefinition, JobState, Namespace, NewJob, execution::Fact},
        ports::recipe::RecipeStore as _,
    },
    recipe::op::Ops,
};

use super::bed::spec_of;
use crate::{
    cli::leasehold::Leasehold,
    scenarios::in_process::Running,
    support::{
        database::TestDatabase,
        eventually::{eventually, pass},
        services,
    },
};

const SOON: Duration = Duration::from_secs(120);

/// Something that runs tasks, with one cpu, on a database. It ends when it is dropped.
type Running1 = Box<dyn Any>;

/// A process, and a folder that goes with it.
struct Process {
    child: Child,
    folder: PathBuf,
}

impl Process {
    fn start(leasehold: &Leasehold, args: &[&str]) -> Self {
        let folder = PathBuf::from("/tmp").join(format!("lh-entry-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        let errors = std::fs::File::create(folder.join("stderr")).unwrap();
        let data = folder.join("data");
        let args: Vec<String> =
            args.iter().map(|arg| arg.replace("{data}", data.to_str().unwrap())).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = leasehold.command(&args);
        Self { child: command.stdout(Stdio::null()).stderr(errors).spawn().unwrap(), folder }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.folder.join("stderr")).unwrap_or_default());
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// `leasehold worker`
async fn worker(database: &TestDatabase) -> Running1 {
    let args = ["worker", "--no-containers", "--allow-commands", "--allocation-cpu", "1"];
    Box::new(Process::start(&Leasehold::on(database.url()), &args))
}

/// `leasehold dev`
async fn dev(database: &TestDatabase) -> Running1 {
    let leasehold = Leasehold::bare().with("RUNTIME_DOCKER_ENDPOINT", &services::docker_endpoint(1));
    let args = [
        "dev",
        "--data-dir",
        "{data}",
        "--database-url",
        database.url(),
        "--allow-commands",
        "--allocation-cpu",
        "1",
    ];
    Box::new(Process::start(&leasehold, &args))
}

/// `leasehold run-with-lease`, which has ended when this returns
fn run_with_lease(database: &TestDatabase, job: &str) -> Running1 {
    let leasehold = Leasehold::on(database.url());
    let file = std::env::temp_dir().join(format!("lh-entry-{}.lease", uuid::Uuid::new_v4().simple()));
    let file = file.to_str().unwrap();
    let acquired = leasehold.run(&["lease", "acquire", "--job", job, "--lease-file", file]);
    assert_eq!(acquired.code, 0, "{acquired:?}");
    let run = ["run-with-lease", "--job", job, "--lease-file", file, "--no-containers", "--allow-commands"];
    let said = leasehold.run(&[&run[..], &["--allocation-cpu", "1"]].concat());
    assert_eq!((said.code, said.json()["outcome"].as_str()), (0, Some("environment_required")), "{said:?}");
    std::fs::remove_file(file).unwrap();
    Box::new(())
}

/// `Worker::builder`, in a program
async fn builder(database: &TestDatabase) -> Running1 {
    let mut settings = Effective::load(&Sources::default()).unwrap().worker().unwrap();
    settings.allow_commands = true;
    settings.allocation.set(Fact::Cpu, "1").unwrap();
    let builder = leasehold::Worker::builder().database_settings(database.settings()).settings(settings);
    Box::new(Running::start(builder.recipes(Ops::new())).await)
}

/// E2: with less than a task needs each of them runs nothing, and hands the job on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insufficient_allocation_runs_nothing_and_hands_off_at_every_entry_point() {
    for entry in ["worker", "dev", "run-with-lease", "builder"] {
        let database = TestDatabase::create().await;
        let store = database.store().await;
        let file = std::env::temp_dir().join(format!("lh-entry-{}", uuid::Uuid::new_v4().simple()));
        let yaml = format!(
            "id: r\nexecution: {{ resources: {{ cpu: \"64\" }} }}\nop: command\nwith: {{ argv: [touch, {}] }}\n",
            file.display()
        );
        let job = store.submit(&NewJob::ad_hoc(JobDefinition::Recipe(spec_of(&yaml)))).await.unwrap().job;
        let running = match entry {
            "worker" => worker(&database).await,
            "dev" => dev(&database).await,
            "run-with-lease" => run_with_lease(&database, &job.to_string()),
            _ => builder(&database).await,
        };
        eventually(SOON, "the job is handed on", async || {
            let present = store.recipe_job(&Namespace::default(), job).await.unwrap().unwrap();
            (present.handoffs == 1).then_some(())
        })
        .await;
        // Nor does it come back to whoever declined it.
        pass(Duration::from_secs(2)).await;
        let present = store.recipe_job(&Namespace::default(), job).await.unwrap().unwrap();
        assert!(matches!(present.state, JobState::Pending | JobState::Queued), "{entry}: {present:?}");
        assert_eq!((present.handoffs, present.events), (1, 0), "{entry}: {present:?}");
        assert!(
            present.payload.contains(r#""requirements":{"resources":{"cpu":"64"}}"#),
            "{entry}: {present:?}"
        );
        let detail = store.show_job(&Namespace::default(), job).await.unwrap().unwrap();
        let how: Vec<&str> = detail.leases.iter().map(|lease| lease.how.as_str()).collect();
        assert_eq!(how, ["rescheduled"], "{entry}");
        assert!(!file.exists(), "{entry}: it ran");
        drop(running);
    }
}
