//! `leasehold run`: submit a job and stay with it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use leasehold_actors::domain::{FailureKind, JobId, JobKind, JobState, Namespace};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{
    CliError, Exit, JobArgs,
    follow::{Follower, Sink},
    output,
    steps::Steps,
    store,
};
use crate::{
    config::Effective,
    postgres::{PgStore, cancel::CancelAnswer, read::JobDetail},
};

/// Submit a job and follow it: its output on our streams, its exit code as ours
///
/// Of a recipe, standard output has the result and nothing else; each step, each handoff and what the programs print go to
/// standard error.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ctrl-C asks for the job's cancel; a second Ctrl-C detaches and leaves the job alone.\n\n\
                        Example: leasehold run --image busybox -- sh -c 'echo out; echo err >&2; exit 3'\n\
                        Example: leasehold run --http http://10.0.0.5:8080/healthz --body-match '\"ok\"'\n\
                        Example: leasehold run --recipe process.yaml --input url=http://example.org/a --require-memory 4Gi"
)]
pub(super) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Send the job's output to the terminal as it is, control sequences included
    #[arg(long)]
    raw: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let job = args.job.to_job(settings.namespace())?;
    crate::submission::validate(&job).map_err(|e| CliError::usage(e.to_string()))?;
    let grace = args.job.stop_grace();
    store::with_store(settings, async |store| {
        // Before the submission: a Ctrl-C right after it must find us listening.
        let mut stop = Stop::listen()?;
        let submitted = store.submit(&job).await?;
        let id = submitted.job;
        output::note(&format!(
            "job {id} {}",
            if submitted.created { "submitted" } else { "was submitted before" }
        ));
        let (sink, steps) = match args.job.is_recipe() {
            // Standard output is for its result.
            true => (Sink::new(args.raw, None).aside(), Some(Steps::default())),
            false => (Sink::new(args.raw, None), None),
        };
        let mut follower =
            Follower { store: &store, namespace: &job.namespace, job: id, sink, after: 0, steps };
        let mut progress = Progress::new(id);
        let following = follower.until_end(|detail, any| progress.show(detail, any));
        let ended = tokio::select! {
            ended = following => ended?,
            interrupted = stop.cancel_then_detach(&store, &job.namespace, id, grace) => return interrupted,
        };
        drop(progress);
        if args.job.is_recipe()
            && let Some(result) = &ended.output
        {
            output::line(&super::text::json(result.get().to_owned()))?;
        }
        Ok(conclude(&ended))
    })
}

/// The last line, and the exit code.
fn conclude(job: &JobDetail) -> Exit {
    let row = &job.row;
    let words = row.failure.as_ref().map_or_else(String::new, |failure| {
        let kind = failure.kind.map_or_else(String::new, |kind| format!("{kind} "));
        let message = failure
            .message
            .as_deref()
            .filter(|m| !m.is_empty())
            .map_or_else(String::new, |m| format!(": {m}"));
        format!(" ({kind}{}{message})", failure.code.as_deref().unwrap_or_default())
    });
    // A program that was killed or ran too long has a code too, but it is not what the program had to say.
    let is_own = row.failure.as_ref().is_some_and(|failure| failure.kind == Some(FailureKind::User));
    let own = row.exit_code.and_then(|code| u8::try_from(code).ok()).filter(|code| is_own && *code != 0);
    match (row.state, own) {
        (JobState::Completed, _) => {
            output::note(&format!("job {} COMPLETED", row.id));
            Exit::Ok
        }
        (JobState::Failed, Some(code)) => {
            output::note(&format!("job {} FAILED{words}; passing on its exit code {code}", row.id));
            Exit::Program(code)
        }
        (state, _) => {
            output::note(&format!("job {} {state}{words}; see `leasehold job show {}`", row.id, row.id));
            Exit::Failed
        }
    }
}

/// Ctrl-C and SIGTERM.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn listen() -> Result<Self, CliError> {
        let listen = |kind| {
            signal(kind).map_err(|e| CliError::new(Exit::Failed, format!("cannot listen for signals: {e}")))
        };
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// The first signal asks for a cancel and lets the following go on; the second one ends us.
    async fn cancel_then_detach(
        &mut self,
        store: &PgStore,
        namespace: &Namespace,
        job: JobId,
        grace: Option<Duration>,
    ) -> Result<Exit, CliError> {
        self.next().await;
        let asked = async {
            let grace = grace.unwrap_or(super::job::cancel::DEFAULT_GRACE);
            match store.request_cancel(namespace, job, grace).await {
                Ok(CancelAnswer::Canceled | CancelAnswer::AlreadyEnded { .. }) => {}
                Ok(CancelAnswer::Requested { .. }) => {
                    output::note(&format!(
                        "asked for the cancel of job {job}; Ctrl-C again leaves it to that"
                    ));
                }
                Ok(CancelAnswer::NotFound) => output::note(&format!("job {job} is gone")),
                Err(error) => output::note(&format!(
                    "the cancel of job {job} is not confirmed ({error}); try: leasehold job cancel {job}"
                )),
            }
            std::future::pending::<std::convert::Infallible>().await
        };
        tokio::select! {
            never = asked => match never {},
            () = self.next() => {
                output::note(&format!("detached; job {job} goes on: leasehold job show {job}"));
                // As a shell reports a program that Ctrl-C ended.
                Ok(Exit::Program(130))
            }
        }
    }
}

/// On a terminal a spinner until the job says something; elsewhere a line when it does not get going.
struct Progress {
    job: JobId,
    bar: Option<ProgressBar>,
    last: Option<JobState>,
    started: tokio::time::Instant,
    hinted: bool,
}

impl Progress {
    fn new(job: JobId) -> Self {
        let bar = output::is_lively().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed:.dim}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { job, bar, last: None, started: tokio::time::Instant::now(), hinted: false }
    }

    fn show(&mut self, detail: &JobDetail, any_output: bool) {
        let state = detail.row.state;
        if any_output && let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if let Some(bar) = &self.bar {
            bar.set_message(format!("job {} {}", self.job, output::state_words(state)));
        }
        let waiting = matches!(state, JobState::Pending | JobState::Queued);
        if waiting && !self.hinted && self.started.elapsed() > Duration::from_secs(5) {
            self.hinted = true;
            output::note(&format!(
                "job {} {}; `leasehold job why {}` says why",
                self.job,
                output::state_words(state),
                self.job
            ));
        }
        // A recipe that waits, or moves on, does not try anything again.
        let tries_again = detail.row.kind != JobKind::Recipe;
        if self.last.is_some_and(|last| last == JobState::Running) && waiting && tries_again {
            output::note(&format!("job {} {} for another try", self.job, output::state_words(state)));
        }
        self.last = Some(state);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
