//! What the demo submits, and how each job is meant to end.

use std::collections::BTreeSet;

use leasehold_actors::{
    domain::{
        ContainerSpec, FailureKind, HeartbeatSpec, JobDefinition, JobId, JobState, NewJob, RawJson,
        RecipeSpec, execution::Allocation,
    },
    ports::recipe::NewSignal,
};
use serde::{Deserialize, Serialize};

use crate::{
    docker::DockerEngine,
    postgres::read::JobDetail,
    recipe::{bundle::Bundle, compile},
    worker::WorkerBuilder,
    workload::handler::{HandlerError, Job, LeaseHandle},
};

/// The image that the demo makes where none can be pulled.
const OWN_IMAGE: &str = "leasehold-demo:latest";
const PUBLIC_IMAGE: &str = "busybox:latest";
const PULL_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);

/// The worker that has more memory, and another platform.
pub const SECOND: &str = "demo-big";

/// The recipes of examples/recipes.
const RECIPES: [(&str, &str, &str, Intended); 5] = [
    (
        "a recipe that moves to where there is more memory",
        "memory.yaml",
        include_str!("../../examples/recipes/memory.yaml"),
        Intended::Moved,
    ),
    (
        "a recipe that goes from amd64 to arm64 and back",
        "platforms.yaml",
        include_str!("../../examples/recipes/platforms.yaml"),
        Intended::Moved,
    ),
    ("a loop", "loop.yaml", include_str!("../../examples/recipes/loop.yaml"), Intended::InSteps),
    (
        "branches at once, one of which fails and is caught",
        "fan-out.yaml",
        include_str!("../../examples/recipes/fan-out.yaml"),
        Intended::InSteps,
    ),
    (
        "a recipe that waits for somebody to approve",
        "approval.yaml",
        include_str!("../../examples/recipes/approval.yaml"),
        Intended::InSteps,
    ),
];

/// The name of the demo's HANDLER.
const HANDLER: &str = "demo-greet";

/// A job of the demo.
#[derive(Debug)]
pub struct DemoJob {
    /// For people.
    pub title: &'static str,
    /// What to submit.
    pub job: NewJob,
    intended: Intended,
    /// The signal that it waits for, which a person would send.
    pub signal: Option<NewSignal>,
    /// Once submitted.
    pub id: Option<JobId>,
}

#[derive(Debug, Clone, Copy)]
enum Intended {
    Completed,
    FailedWith(i32),
    /// Perhaps under one lease after the other.
    InSteps,
    /// In steps, by one worker after the other.
    Moved,
}

impl DemoJob {
    /// How it is meant to end, in words.
    #[must_use]
    pub fn intention(&self) -> String {
        match self.intended {
            Intended::Completed | Intended::InSteps => "COMPLETED".to_owned(),
            Intended::Moved => "COMPLETED, on two workers".to_owned(),
            Intended::FailedWith(code) => format!("FAILED, USER code {code}"),
        }
    }

    /// Whether it ended as it was meant to.
    #[must_use]
    pub fn is_as_intended(&self, job: &JobDetail) -> bool {
        let row = &job.row;
        let workers: BTreeSet<&str> = job.leases.iter().map(|lease| lease.worker.as_str()).collect();
        let history_is_whole = match self.intended {
            Intended::Completed | Intended::FailedWith(_) => job.leases.len() == 1,
            Intended::InSteps => !workers.is_empty(),
            Intended::Moved => workers.len() == 2,
        };
        history_is_whole
            && job.leases.iter().all(|lease| lease.ended_at.is_some())
            && match self.intended {
                Intended::Completed | Intended::InSteps | Intended::Moved => {
                    row.state == JobState::Completed && row.failure.is_none()
                }
                Intended::FailedWith(code) => {
                    row.state == JobState::Failed
                        && row.exit_code == Some(code)
                        && row.failure.as_ref().is_some_and(|f| {
                            f.kind == Some(FailureKind::User) && f.code.as_deref() == Some(&*code.to_string())
                        })
                }
            }
    }
}

/// The demo's jobs; those in containers only where there is an image to run.
pub fn jobs(probe: std::net::SocketAddr, image: Option<&str>) -> Vec<DemoJob> {
    let mut jobs = vec![
        demo("an HTTP probe", heartbeat(probe), "null", Intended::Completed),
        demo(
            "a Rust function",
            JobDefinition::Handler { name: HANDLER.to_owned() },
            r#"{"name": "world"}"#,
            Intended::Completed,
        ),
    ];
    jobs.extend(RECIPES.map(|(title, file, text, intended)| {
        let definition = JobDefinition::Recipe(recipe(file, text));
        let signal = (file == "approval.yaml").then(|| NewSignal {
            name: "approved".to_owned(),
            data: r#"{"by": "the demo"}"#.to_owned(),
            key: None,
        });
        DemoJob { signal, ..demo(title, definition, "null", intended) }
    }));
    if let Some(image) = image {
        let steps = "echo \"job $LEASEHOLD_JOB_ID, epoch $LEASEHOLD_FENCING_EPOCH\"; \
                     for step in 1 2 3; do echo \"step $step of 3\"; sleep 1; done";
        let fails = "echo 'this one fails on purpose' >&2; exit 7";
        jobs.push(demo("a container", container(image, steps), "null", Intended::Completed));
        jobs.push(demo(
            "a container that fails on purpose",
            container(image, fails),
            "null",
            Intended::FailedWith(7),
        ));
    }
    jobs
}

fn demo(title: &'static str, definition: JobDefinition, payload: &str, intended: Intended) -> DemoJob {
    let mut job = NewJob::ad_hoc(definition);
    job.payload = payload.to_owned();
    DemoJob { title, job, intended, signal: None, id: None }
}

fn heartbeat(probe: std::net::SocketAddr) -> JobDefinition {
    JobDefinition::Heartbeat(HeartbeatSpec {
        url: format!("http://{probe}/"),
        method: "GET".to_owned(),
        expected_status: vec![200],
        headers: std::collections::BTreeMap::new(),
        body: None,
        body_match: Some("alive".to_owned()),
        max_redirects: 0,
        timeout_ms: 10_000,
        insecure_skip_tls_verify: false,
    })
}

fn container(image: &str, script: &str) -> JobDefinition {
    JobDefinition::Container(ContainerSpec {
        image: image.to_owned(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        // Works on every engine, also on a private one without a bridge.
        network: Some("none".to_owned()),
        stop_grace_ms: Some(2000),
        ..ContainerSpec::default()
    })
}

/// Who is greeted.
#[derive(Debug, Deserialize)]
struct Greeting {
    name: String,
}

/// What the handler answers.
#[derive(Debug, Serialize)]
struct Greeted {
    greeting: String,
    epoch: i64,
}

/// A recipe, pinned as a submission does it.
fn recipe(file: &str, text: &str) -> RecipeSpec {
    let bundle = Bundle::new(file, [(file.to_owned(), text.to_owned())].into());
    let recipe = compile(&bundle).expect("the demo's own recipes are good");
    RecipeSpec {
        recipe: recipe.id,
        job_type: recipe.job_type,
        language: recipe.language,
        digest: bundle.digest(),
        bundle: RawJson::new(bundle.to_json()).expect("a bundle is JSON"),
        inputs: RawJson::default(),
        require: RawJson::default(),
    }
}

/// What the demo's two workers say that they have. Nothing of it is measured: it shows a job that moves.
#[must_use]
pub fn allocations() -> [Allocation; 2] {
    ["cpu=1,memory=1Gi,ephemeral-storage=10Gi,platform=linux/amd64", "cpu=4,memory=32Gi,platform=linux/arm64"]
        .map(|text| text.parse().expect("facts as people write them"))
}

/// Registers the demo's handler with the worker of `dev`.
pub(super) fn register(worker: WorkerBuilder) -> WorkerBuilder {
    worker.handler(HANDLER, |job: Job<Greeting>, lease: LeaseHandle| async move {
        Ok::<_, HandlerError>(Greeted {
            greeting: format!("hello, {}", job.payload.name),
            epoch: lease.epoch().0,
        })
    })
}

/// An image with a shell: one that the engine has, else the public one, else one made of a static busybox.
///
/// # Errors
/// The words say what to install.
pub async fn image(endpoint: &str, tls: Option<&crate::config::TlsFiles>) -> Result<String, String> {
    let engine = DockerEngine::connect(endpoint, tls).map_err(|e| e.to_string())?;
    for name in [PUBLIC_IMAGE, OWN_IMAGE] {
        if engine.has_image(name).await.map_err(|e| e.to_string())? {
            return Ok(name.to_owned());
        }
    }
    let pull = leasehold_actors::ports::ContainerEngine::ensure_image(
        &engine,
        PUBLIC_IMAGE,
        leasehold_actors::domain::PullPolicy::Missing,
    );
    if matches!(tokio::time::timeout(PULL_LIMIT, pull).await, Ok(Ok(()))) {
        return Ok(PUBLIC_IMAGE.to_owned());
    }
    engine
        .make_tiny_image(OWN_IMAGE, &[])
        .await
        .map(|()| OWN_IMAGE.to_owned())
        .map_err(|e| format!("{PUBLIC_IMAGE} cannot be pulled, and no image can be made: {e}"))
}
