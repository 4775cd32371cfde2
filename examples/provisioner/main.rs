//! A provisioner: the other half of a handoff. It watches which environments recipes wait for, acquires the lease of one
//! such job, starts a worker *container* with that image, cpu and memory on a runtime node, and passes it the lease by a
//! private pipe. README.md beside this file is its guide.
//!
//! - `demand`: what is asked for, and where it could run · `container`: the worker container, from its creation to its end
//! - `cleanup`: what provisioners that died left behind
//!
//! It may be killed at any point: until the capability is handed over, nothing has run, and the lease runs out by itself;
//! from then on the worker in the container holds it, and no longer needs its provisioner.

mod cleanup;
mod container;
mod demand;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Display,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Parser as _;
use leasehold::{
    config::{Effective, Sources, TlsFiles},
    postgres::PgStore,
    protocol::{
        domain::{
            CommandId, ContainerId, JobId, Namespace, ProcessId,
            execution::{Allocation, Requirements, compare},
        },
        error::Applied,
        ports::{Authority, Claimant, End, LeaseStore as _, ListedAnswer, ListedClaim, Renewal},
    },
    recipe::supplied::Capability,
    worker::StopSignals,
};
use tokio::{runtime::Handle, time::Instant};
use uuid::Uuid;

use self::{
    container::{Engine, Started},
    demand::Demand,
};

/// A job that could not be given a worker is left alone for so long.
const LATER: Duration = Duration::from_secs(30);
/// Between two looks for what others left behind.
const CLEANUP: Duration = Duration::from_secs(3);
/// Between two questions that brought no answer.
const AGAIN: Duration = Duration::from_millis(200);

/// Start a worker container for each recipe that waits for an environment which no worker has.
///
/// The database, the namespace and the times of leases come from the environment, as for `leasehold worker`.
#[derive(Debug, clap::Parser)]
struct Args {
    /// The image of workers whose job names none; it must have the program
    #[arg(long)]
    image: Option<String>,
    /// `leasehold` in the image
    #[arg(long, default_value = "leasehold")]
    program: String,
    /// The network of the containers; the database must be reachable from there
    #[arg(long)]
    network: Option<String>,
    /// A bind mount of every container, as Docker writes it: /SOURCE:/TARGET[:ro]; may be repeated
    #[arg(long)]
    bind: Vec<String>,
    /// UID:GID that the worker runs as
    #[arg(long, default_value = "0:0", value_parser = user)]
    user: (u32, u32),
    /// The database as the containers reach it, if it is another address
    #[arg(long, env = "PROVISIONER_WORKER_DATABASE_URL", hide_env_values = true)]
    worker_database_url: Option<String>,
    /// Most workers at once
    #[arg(long, default_value_t = 4)]
    max_workers: usize,
    /// Between two looks
    #[arg(long, default_value = "500ms", value_parser = humantime::parse_duration)]
    poll: Duration,
    /// More flags of `leasehold run-with-lease`, such as --allow-commands
    #[arg(last = true)]
    flags: Vec<String>,
}

fn user(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.parse::<u32>().ok();
    let parts = text.split_once(':').and_then(|(uid, gid)| Some((number(uid)?, number(gid)?)));
    // Seven octal digits are what the archive has room for.
    parts.filter(|(uid, gid)| *uid.max(gid) < 1 << 21).ok_or_else(|| "write UID:GID as numbers".to_owned())
}

/// What every part of the program goes by.
struct Settings {
    fleet: Uuid,
    namespace: Namespace,
    owner: Claimant,
    lease: Duration,
    tls: Option<TlsFiles>,
    image: Option<String>,
    program: String,
    network: Option<String>,
    binds: Vec<String>,
    user: (u32, u32),
    flags: Vec<String>,
    /// For the worker's settings file.
    worker: BTreeMap<String, String>,
}

/// A step that could not be done.
#[derive(Debug)]
struct Failed {
    step: &'static str,
    why: String,
}

impl Failed {
    fn of<E: Display>(step: &'static str) -> impl Fn(E) -> Self {
        move |error| Self { step, why: error.to_string() }
    }
}

impl Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.step, self.why)
    }
}

fn fits(needs: &Requirements, has: &Allocation) -> Result<(), Failed> {
    let mismatches = compare(needs, has);
    if mismatches.is_empty() {
        return Ok(());
    }
    Err(Failed { step: "compare", why: demand::words(&mismatches) })
}

/// For tests: `PROVISIONER_PAUSE_AT` names a point, where the program says so and goes no further.
async fn point(name: &str) {
    if std::env::var("PROVISIONER_PAUSE_AT").as_deref() == Ok(name) {
        println!("paused at {name}");
        std::future::pending().await
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    leasehold::telemetry::init("warn,provisioner=info")?;
    let effective = Effective::load(&Sources::of_process(BTreeMap::new(), None))?;
    let database = effective.database("leasehold provisioner")?;
    let worker = effective.worker()?;
    let url = args.worker_database_url.unwrap_or_else(|| database.url.clone());
    let store = PgStore::connect(&database, Handle::current()).await?;
    let settings = Arc::new(Settings {
        fleet: store.fleet().await?,
        namespace: worker.namespace.clone(),
        owner: Claimant {
            namespace: worker.namespace.clone(),
            worker: worker.worker_id,
            process: ProcessId::generate(),
        },
        lease: worker.lease,
        tls: worker.runtime_tls,
        image: args.image,
        program: args.program,
        network: args.network,
        binds: args.bind,
        user: args.user,
        flags: args.flags,
        worker: container::worker_settings(&effective, url, worker.namespace.to_string()),
    });
    let mut provisioner =
        Provisioner { store, settings, ours: Arc::default(), later: HashMap::new(), cleaned: None };
    let signals = StopSignals::listen()?;
    let mut stopped = std::pin::pin!(signals.first());
    loop {
        // A pass that began is finished: so that a lease which was acquired is handed over, or given back.
        let began = provisioner.busy();
        if let Err(error) = provisioner.pass(args.max_workers.saturating_sub(began)).await {
            tracing::warn!(%error, "this look came to nothing");
        }
        tokio::select! {
            () = &mut stopped => return Ok(()),
            () = tokio::time::sleep(args.poll) => {}
        }
    }
}

struct Provisioner {
    store: PgStore,
    settings: Arc<Settings>,
    /// The containers that this process follows.
    ours: Arc<Mutex<HashSet<ContainerId>>>,
    /// Jobs that could not be given a worker, and until when they are left alone.
    later: HashMap<JobId, Instant>,
    cleaned: Option<Instant>,
}

impl Provisioner {
    fn busy(&self) -> usize {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Looks once, and starts at most so many workers.
    async fn pass(&mut self, room: usize) -> Result<(), Failed> {
        let nodes = self.store.node_list(&self.settings.namespace).await.map_err(Failed::of("list nodes"))?;
        if self.cleaned.is_none_or(|last| last.elapsed() >= CLEANUP) {
            self.cleaned = Some(Instant::now());
            for node in nodes.iter().filter(|node| node.fresh) {
                let engine = Engine::connect(&self.settings, &node.endpoint).await;
                let ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let done = match engine {
                    Ok(engine) => cleanup::pass(&self.store, &self.settings, &engine, &ours).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = done {
                    tracing::warn!(node = %node.id, %error, "not cleaned up");
                }
            }
        }
        self.later.retain(|_, until| *until > Instant::now());
        let demands =
            demand::look(&self.store, &self.settings.namespace).await.map_err(Failed::of("look"))?;
        let wanted = demands.into_iter().filter(|demand| !self.later.contains_key(&demand.job.job));
        for demand in wanted.take(room).collect::<Vec<_>>() {
            let job = demand.job.job;
            let done = match demand::node_for(&nodes, &demand.needs) {
                Ok(node) => self.provide(&demand, &node.endpoint).await,
                Err(why) => Err(Failed { step: "place", why }),
            };
            if let Err(error) = done {
                tracing::warn!(%job, needs = %demand.needs, %error, "no worker for this job for now");
                self.later.insert(job, Instant::now() + LATER);
            }
        }
        Ok(())
    }

    /// From the acquisition to the handing over.
    async fn provide(&self, demand: &Demand, endpoint: &str) -> Result<(), Failed> {
        let needs = &demand.needs;
        let image = needs.image.as_ref().map(ToString::to_string).or_else(|| self.settings.image.clone());
        let image = image.ok_or_else(|| Failed {
            step: "image",
            why: "the job names none; start the provisioner with --image".to_owned(),
        })?;
        let engine = Engine::connect(&self.settings, endpoint).await?;
        // Claiming what could not be served after all would only make the job's hint stale.
        let image_has = engine.ensure_image(&image).await?;
        let would_have =
            Allocation { cpu_millis: needs.cpu_millis, memory_bytes: needs.memory_bytes, ..image_has };
        fits(needs, &would_have)?;
        let Some(authority) = self.acquire(demand).await? else { return Ok(()) };
        point("acquired").await;
        let made = match engine.create(&self.settings, &image, needs, (authority.job, authority.epoch)).await
        {
            Ok(made) => made,
            Err(error) => {
                self.give_back(&authority).await;
                return Err(error);
            }
        };
        let id = made.id.clone();
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        let mut started = match self.start(&engine, made, needs).await {
            Ok(started) => started,
            Err(error) => {
                engine.remove(&id).await;
                self.ours.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                self.give_back(&authority).await;
                return Err(error);
            }
        };
        // The last renewal by us: what the container took to come up is not the worker's loss. Without an answer the
        // worker's own first renewal decides.
        if matches!(self.store.renew(&authority).await, Ok(Renewal::NotLive)) {
            tracing::warn!(job = %authority.job, "the lease is lost already");
        }
        let job = authority.job;
        let handed_over = started.hand_over(&Capability::from(authority)).await;
        if let Err(error) = &handed_over {
            // Perhaps it has it. What is removed holds no lease; what was not redeemed runs out.
            tracing::warn!(%job, %error, "not handed over");
        }
        point("handed-over").await;
        self.follow(engine, started, job);
        Ok(())
    }

    /// The container has what it needs by the engine's own word, has its settings, and waits for its capability.
    async fn start(
        &self,
        engine: &Engine,
        made: container::Made,
        needs: &Requirements,
    ) -> Result<Started, Failed> {
        point("created").await;
        fits(needs, &made.has)?;
        engine.configure(&self.settings, &made).await?;
        let started = engine.start(made).await?;
        point("started").await;
        Ok(started)
    }

    /// Claims the job under a lease, as it was seen. Nothing if somebody else has it.
    async fn acquire(&self, demand: &Demand) -> Result<Option<Authority>, Failed> {
        let mut claim = ListedClaim {
            owner: self.settings.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            jobs: vec![demand.job],
            lease: self.settings.lease,
        };
        let until = Instant::now() + self.settings.lease;
        let answers = loop {
            match self.store.claim_listed(&claim).await {
                Ok(answers) => break answers,
                // Asked again under the same command, it is the same claim.
                Err(error) if error.is_retryable() && Instant::now() < until => {
                    claim.repeat |= error.applied == Applied::Maybe;
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(Failed::of("acquire")(error)),
            }
        };
        match answers.into_iter().next() {
            Some(ListedAnswer::Granted(grant)) => Ok(Some(grant.authority)),
            Some(ListedAnswer::Rejected(job, why)) => {
                tracing::info!(%job, %why, "not acquired");
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Gives back what will not be run by us. Without an answer the lease runs out.
    async fn give_back(&self, authority: &Authority) {
        let end = End::Release { delay: Duration::ZERO, reason: "not_provisioned" };
        if let Err(error) = self.store.end(authority, CommandId::generate(), &end).await {
            tracing::warn!(job = %authority.job, %error, "not given back; the lease runs out");
        }
    }

    /// Tells how a worker ended, and removes its container.
    fn follow(&self, engine: Engine, started: Started, job: JobId) {
        let ours = Arc::clone(&self.ours);
        let id = started.id.clone();
        tokio::spawn(async move {
            match engine.follow(started).await {
                Ok((code, said)) => {
                    println!("job {job}: the worker ended with {code}: {}", leasehold::cli::one_line(&said));
                }
                Err(error) => tracing::warn!(%job, %error, "the worker's end was not seen"),
            }
            engine.remove(&id).await;
            ours.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        });
    }
}
