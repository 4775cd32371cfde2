//! `leasehold bench --replay`: how long a worker that knows nothing of a recipe takes to walk over what is recorded of it.
//!
//! The recipe is a loop whose every step reads the result of the one before, 1 KiB long, by a template, and leaves by a
//! condition; then it waits for a signal. Its steps are really run and recorded first. What is measured is read-only
//! replay on a fresh connection (job, pages of the log, compile, walk), and then one lease of a worker that is started for
//! it: from its grant to its end, with the longest time between two renewals, by the database's clock.

use std::{collections::BTreeMap, fmt, future::Future, time::Duration};

use leasehold_actors::{
    domain::{JobDefinition, JobId, JobState, Namespace, NewJob, RawJson, RecipeSpec},
    ports::recipe::{Event, NewSignal, RecipeStore},
};
use serde::Serialize;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::{BenchError, drain::worker_settings, fixture::Bench, stats::median};
use crate::{
    config::DatabaseSettings,
    postgres::PgStore,
    recipe::{
        bundle::Bundle,
        execution::{ReplayEnd, replay},
        op::{Ops, Task},
    },
    worker::Worker,
};

/// Bytes of text in each result.
const RESULT: usize = 1000;
/// A lease as short as settings allow is renewed as often as that.
const RENEW: Duration = Duration::from_millis(100);
/// Nothing takes so long unless something is broken.
const LIMIT: Duration = Duration::from_mins(10);

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct ReplayOptions {
    /// With --replay: recorded steps
    #[arg(long, value_delimiter = ',', default_value = "1000,3000,10000",
        value_parser = clap::value_parser!(u32).range(1..=40_000))]
    pub steps: Vec<u32>,
}

/// The figures of one length.
#[derive(Debug, Clone, Serialize)]
pub struct ReplaySteps {
    /// Recorded steps.
    pub steps: u32,
    /// Reading and walking over them; median of the rounds.
    pub replay_ms: f64,
    /// The same for one step.
    pub step_us: f64,
    /// That over the same of the shortest log.
    pub ratio: f64,
    /// The most memory that the process took more than before, in MiB, where the system tells.
    pub peak_mib: Option<f64>,
    /// A worker's lease, from its grant to its end.
    pub lease_ms: f64,
    /// The longest time between two renewals in it, and how many there were.
    pub longest_gap_ms: f64,
    /// Renewals.
    pub renewals: u32,
}

/// The figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// The server's version.
    pub postgres: String,
    /// Whether this program was built with optimisation.
    pub optimised: bool,
    /// Rounds.
    pub rounds: u32,
    /// One line a length.
    pub lines: Vec<ReplaySteps>,
}

/// Measures; see [`super::run`].
///
/// # Errors
/// [`BenchError`] when there are no figures, or none that are worth anything.
pub async fn run(
    database: &DatabaseSettings,
    options: &ReplayOptions,
    rounds: u32,
    progress: &(dyn Fn(&str) + Send + Sync),
    stop: impl Future<Output = ()> + Send,
) -> Result<ReplayReport, BenchError> {
    let bench = Bench::start(database, progress).await?;
    let measured = tokio::select! {
        measured = measure(&bench, options, rounds) => measured,
        () = stop => Err(BenchError::Interrupted),
    };
    progress("removing the benchmark's jobs");
    let removed = bench.clean_up().await;
    let report = measured?;
    removed?;
    Ok(report)
}

async fn measure(
    bench: &Bench<'_>,
    options: &ReplayOptions,
    rounds: u32,
) -> Result<ReplayReport, BenchError> {
    let mut lines: Vec<ReplaySteps> = Vec::new();
    for &steps in &options.steps {
        bench.say(&format!("{steps} steps are run and recorded"));
        let namespace = bench.namespace();
        let job = record(bench, &namespace, steps).await?;
        let (mut times, mut peaks) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            bench.say(&format!("{steps} steps: replay {round} of {rounds}"));
            let before = peak_anew();
            times.push(walk_over(bench, &namespace, job, steps).await?.as_secs_f64() * 1e3);
            peaks.extend(before.and_then(|before| Some(memory("VmHWM:")? - before)));
        }
        bench.say(&format!("{steps} steps: a worker"));
        let lease = one_lease(bench, &namespace, job).await?;
        let replay_ms = median(&times).unwrap_or_default();
        let step_us = replay_ms * 1e3 / f64::from(steps);
        let ratio = lines.first().map_or(1.0, |first| step_us / first.step_us);
        let peak_mib = median(&peaks);
        lines.push(ReplaySteps { steps, replay_ms, step_us, ratio, peak_mib, ..lease });
    }
    Ok(ReplayReport {
        postgres: bench.server.version().await?,
        optimised: !cfg!(debug_assertions),
        rounds,
        lines,
    })
}

fn recipe(steps: u32) -> RecipeSpec {
    let yaml = format!(
        r#"
id: bench-replay
sequence:
  - id: loop
    state:
      initial: step
      states:
        - id: step
          op: bench-step
          inputs: {{ previous: "${{{{ transition.payload }}}}" }}
          transitions:
            - {{ to: done, when: "${{{{ states.step.outputs.n >= {steps} }}}}" }}
            - {{ to: step, payload: "${{{{ states.step.outputs }}}}" }}
        - {{ id: done, op: wait_for_signal, inputs: {{ name: go }} }}
"#
    );
    let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), yaml)]));
    RecipeSpec {
        recipe: "bench-replay".to_owned(),
        job_type: RecipeSpec::DEFAULT_JOB_TYPE.to_owned(),
        language: bundle.language,
        digest: bundle.digest(),
        bundle: RawJson::new(bundle.to_json()).expect("a bundle is JSON"),
        inputs: RawJson::default(),
        require: RawJson::default(),
    }
}

/// The one op: it counts on from what it is given.
fn ops() -> Ops {
    let mut ops = Ops::new();
    let step = |task: Task| async move {
        let input: serde_json::Value = task.input()?;
        let n = input["previous"]["n"].as_u64().unwrap_or(0) + 1;
        Ok(format!(r#"{{"n":{n},"text":"{}"}}"#, "x".repeat(RESULT)).into())
    };
    ops.register_fn("bench-step", step).expect("a good name");
    ops
}

/// Runs the steps, until the recipe waits.
async fn record(bench: &Bench<'_>, namespace: &Namespace, steps: u32) -> Result<JobId, BenchError> {
    let worker = Worker::builder()
        .database_settings(bench.database.clone())
        .settings(worker_settings(namespace, 1, 1)?)
        .recipes(ops())
        .build()
        .await?;
    let mut job = NewJob::ad_hoc(JobDefinition::Recipe(recipe(steps)));
    job.namespace = namespace.clone();
    let job = bench.store.submit(&job).await?.job;
    let waits = async {
        let begun = Instant::now();
        loop {
            let about = bench.store.recipe_job(namespace, job).await?;
            let Some(about) = about else {
                return Err(BenchError::Invalidated("the job is gone".to_owned()));
            };
            let waits = about.events == i64::from(steps) && about.state == JobState::Pending;
            if waits || about.state.is_terminal() {
                return Ok(());
            }
            if begun.elapsed() > LIMIT {
                return Err(BenchError::Invalidated("it took longer than ten minutes".to_owned()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut outcome = Ok(());
    Box::pin(worker.run_until(async { outcome = waits.await })).await?;
    outcome.map(|()| job)
}

/// Reads and walks over the log, on a connection that was just opened.
async fn walk_over(
    bench: &Bench<'_>,
    namespace: &Namespace,
    job: JobId,
    steps: u32,
) -> Result<Duration, BenchError> {
    let store = PgStore::connect(&bench.database, tokio::runtime::Handle::current()).await?;
    let broken = |what: String| BenchError::Invalidated(what);
    let begun = Instant::now();
    let about =
        store.recipe_job(namespace, job).await?.ok_or_else(|| broken("the job is gone".to_owned()))?;
    let mut events: Vec<Event> = Vec::new();
    loop {
        let after = events.last().map_or(0, |event| event.ordinal);
        let page = store.events(namespace, job, after).await?;
        if page.is_empty() {
            break;
        }
        events.extend(page);
    }
    let walked = replay(namespace, job, &about, events).await.map_err(|failure| broken(failure.message))?;
    let took = begun.elapsed();
    let tasks = u32::try_from(walked.tasks.len()).unwrap_or(u32::MAX);
    if tasks != steps || !matches!(&walked.end, ReplayEnd::CacheMiss { .. }) {
        return Err(broken(format!("{tasks} tasks of {steps} were walked over, to {:?}", walked.end)));
    }
    Ok(took)
}

/// A worker that is started for it goes on to the end: one lease.
async fn one_lease(bench: &Bench<'_>, namespace: &Namespace, job: JobId) -> Result<ReplaySteps, BenchError> {
    let mut settings = worker_settings(namespace, 1, 1)?;
    settings.lease = Duration::from_secs(5);
    settings.safety_margin = Duration::from_millis(500);
    settings.store_timeout = Duration::from_secs(1);
    settings.renew_interval = RENEW;
    let worker = Worker::builder()
        .database_settings(bench.database.clone())
        .settings(settings)
        .recipes(ops())
        .build()
        .await?;
    let signal = NewSignal { name: "go".to_owned(), data: "null".to_owned(), key: None };
    bench.store.send_signal(namespace, job, &signal).await?;
    let client = bench.server.client();
    let mut expiries: Vec<f64> = Vec::new();
    let watched = async {
        let begun = Instant::now();
        loop {
            let row = client
                .query_typed(
                    "select (select extract(epoch from l.lease_expires_at)::float8 from leasehold.leases l where l.job_id = $1),
                            (select e.state::text from leasehold.ended e where e.job_id = $1)",
                    &[(&job.0, Type::INT8)],
                )
                .await?;
            let row = row.first().ok_or_else(|| BenchError::Sql("no row".to_owned()))?;
            if let Some(expiry) = row.get::<_, Option<f64>>(0)
                && expiries.last() != Some(&expiry)
            {
                expiries.push(expiry);
            }
            match row.get::<_, Option<String>>(1).as_deref() {
                Some("COMPLETED") => return Ok(()),
                Some(state) => return Err(BenchError::Invalidated(format!("the recipe ended as {state}"))),
                None if begun.elapsed() > LIMIT => {
                    return Err(BenchError::Invalidated("the worker does not come to an end".to_owned()));
                }
                None => tokio::time::sleep(Duration::from_millis(3)).await,
            }
        }
    };
    let mut outcome = Ok(());
    Box::pin(worker.run_until(async { outcome = watched.await })).await?;
    outcome?;
    let rows = client
        .query_typed(
            "select extract(epoch from ended_at - granted_at)::float8 * 1000, renewals,
                    extract(epoch from granted_at)::float8, extract(epoch from ended_at)::float8
             from leasehold.lease_history where job_id = $1 order by epoch desc limit 1",
            &[(&job.0, Type::INT8)],
        )
        .await?;
    let row = rows.first().ok_or_else(|| BenchError::Sql("no lease".to_owned()))?;
    let (lease_ms, renewals): (f64, i32) = (row.get(0), row.get(1));
    let (granted, ended): (f64, f64) = (row.get(2), row.get(3));
    // Each renewal moves the expiry on to one lease from itself.
    let mut instants = vec![granted];
    instants.extend(expiries.iter().map(|expiry| expiry - 5.0).filter(|at| *at > granted));
    instants.push(ended);
    let longest = instants.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    Ok(ReplaySteps {
        steps: 0,
        replay_ms: 0.0,
        step_us: 0.0,
        ratio: 0.0,
        peak_mib: None,
        lease_ms,
        longest_gap_ms: longest * 1e3,
        renewals: u32::try_from(renewals).unwrap_or_default(),
    })
}

/// The memory of this process now, with the record of its peak begun anew; none where the system does not tell.
fn peak_anew() -> Option<f64> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    memory("VmRSS:")
}

/// A line of what the system says of this process's memory, in MiB.
fn memory(line: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let found = status.lines().find_map(|text| text.strip_prefix(line))?;
    let kib: f64 = found.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1024.0)
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unoptimised = if self.optimised { "" } else { " (built without optimisation)" };
        writeln!(f, "PostgreSQL {}, results of 1 KiB, {} rounds{unoptimised}", self.postgres, self.rounds)?;
        write!(
            f,
            "{:>7} {:>11} {:>9} {:>7} {:>9}   {:>12} {:>9} {:>12}",
            "steps", "replay ms", "µs/step", "ratio", "peak MiB", "one lease ms", "renewals", "longest gap"
        )?;
        for line in &self.lines {
            let peak = line.peak_mib.map_or_else(|| "?".to_owned(), |peak| format!("{peak:.1}"));
            write!(
                f,
                "\n{:>7} {:>11.1} {:>9.1} {:>7.2} {:>9}   {:>12.1} {:>9} {:>9.1} ms",
                line.steps,
                line.replay_ms,
                line.step_us,
                line.ratio,
                peak,
                line.lease_ms,
                line.renewals,
                line.longest_gap_ms
            )?;
        }
        Ok(())
    }
}
