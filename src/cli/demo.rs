//! What `leasehold dev --demo` shows.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use leasehold_actors::{
    domain::{JobId, JobKind, JobState},
    ports::recipe::RecipeStore as _,
};

use super::{CliError, job, output, steps};
use crate::{
    dev::{Dev, demo, demo::DemoJob},
    postgres::read::JobDetail,
};

/// The demo's jobs take a few seconds; nothing that goes well takes this long.
const LIMIT: Duration = Duration::from_secs(120);

/// What came of the demo.
pub(super) struct Shown {
    /// Every job ended as it was meant to.
    pub(super) as_intended: bool,
    /// The image of the container jobs.
    pub(super) image: Option<String>,
}

/// Submits the demo's jobs, shows their progress and then each with its lease history.
pub(super) async fn run(dev: &Dev) -> Result<Shown, CliError> {
    let image = match &dev.engine {
        Some(engine) => match demo::image(&engine.endpoint, None).await {
            Ok(image) => Some(image),
            Err(reason) => {
                output::note(&format!("no container jobs: {reason}"));
                None
            }
        },
        None => None,
    };
    let Some(probe) = dev.probe_address() else { return Ok(Shown { as_intended: false, image }) };
    let mut jobs = demo::jobs(probe, image.as_deref());
    for (worker, has) in ["the first worker", demo::SECOND].into_iter().zip(demo::allocations()) {
        output::note(&format!("  {worker} says that it has {has}"));
    }
    for demo in &mut jobs {
        demo.id = Some(dev.store.submit(&demo.job).await?.job);
    }
    let ended = follow(dev, &jobs).await?;
    let mut as_intended = image.is_some();
    for demo in &jobs {
        let Some(detail) = demo.id.and_then(|id| ended.get(&id)) else {
            as_intended = false;
            continue;
        };
        as_intended &= conclude(dev, demo, detail).await?;
    }
    if image.is_none() {
        output::note("the demo's container jobs need a Docker engine; see above");
    }
    Ok(Shown { as_intended, image })
}

async fn conclude(dev: &Dev, demo: &DemoJob, detail: &JobDetail) -> Result<bool, CliError> {
    let good = demo.is_as_intended(detail);
    let row = &detail.row;
    let ending = match &row.failure {
        Some(failure) => format!("{} ({})", row.state, job::failure_words(failure)),
        None => row.state.to_string(),
    };
    output::line("")?;
    output::line(&format!(
        "job {}: {}: {}{}",
        row.id,
        demo.title,
        super::one_line(&ending),
        if good { "" } else { " (not as intended)" }
    ))?;
    job::show::leases(detail)?;
    if row.kind == JobKind::Recipe {
        for line in detail.leases.iter().filter_map(steps::handoff) {
            output::line(&super::one_line(&line))?;
        }
        let events = steps::all(&dev.store, &row.namespace, row.id).await?;
        steps::table(&events, row.submitted_at)?;
    }
    Ok(good)
}

/// Follows all jobs until they have ended, or the limit is over.
async fn follow(dev: &Dev, jobs: &[DemoJob]) -> Result<HashMap<JobId, JobDetail>, CliError> {
    let board = Board::new(jobs);
    let mut ended = HashMap::new();
    let mut signalled = HashSet::new();
    let until = tokio::time::Instant::now() + LIMIT;
    loop {
        for demo in jobs {
            let Some(id) = demo.id.filter(|id| !ended.contains_key(id)) else { continue };
            let Some(detail) = dev.store.show_job(&demo.job.namespace, id).await? else { continue };
            board.show(id, detail.row.state);
            if let Some(signal) = demo.signal.as_ref().filter(|_| waits(&detail) && signalled.insert(id)) {
                dev.store.send_signal(&demo.job.namespace, id, signal).await?;
                output::note(&format!("signal {} sent to job {id}", signal.name));
            }
            if detail.row.state.is_terminal() {
                ended.insert(id, detail);
            }
        }
        if ended.len() == jobs.len() {
            return Ok(ended);
        }
        if tokio::time::Instant::now() > until {
            output::note(&format!("the demo's jobs have not ended within {} s", LIMIT.as_secs()));
            return Ok(ended);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// It has run, and waits for something.
fn waits(job: &JobDetail) -> bool {
    job.row.state == JobState::Pending && !job.leases.is_empty()
}

/// A moving line for each job on a terminal, elsewhere a line for each change.
struct Board {
    lines: HashMap<JobId, (String, Option<ProgressBar>)>,
    last: std::cell::RefCell<HashMap<JobId, JobState>>,
}

impl Board {
    fn new(jobs: &[DemoJob]) -> Self {
        let bars = output::is_lively().then(MultiProgress::new);
        let lines = jobs.iter().filter_map(|demo| {
            let id = demo.id?;
            let bar = bars.as_ref().map(|bars| {
                let bar = bars.add(ProgressBar::new_spinner());
                if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed:.dim}") {
                    bar.set_style(style);
                }
                bar.enable_steady_tick(Duration::from_millis(120));
                bar
            });
            Some((id, (format!("job {id}: {} (meant to end {})", demo.title, demo.intention()), bar)))
        });
        Self { lines: lines.collect(), last: std::cell::RefCell::default() }
    }

    fn show(&self, id: JobId, state: JobState) {
        if self.last.borrow_mut().insert(id, state) == Some(state) {
            return;
        }
        let Some((title, bar)) = self.lines.get(&id) else { return };
        let text = format!("{title} {}", output::state_words(state));
        match bar {
            Some(bar) if state.is_terminal() => bar.finish_with_message(text),
            Some(bar) => bar.set_message(text),
            None => output::note(&text),
        }
    }
}
