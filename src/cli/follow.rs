//! Following a job: its output on our own streams as it is stored, until the job has ended.

use std::{
    collections::HashMap,
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use leasehold_actors::domain::{Epoch, JobId, Namespace};

use super::{CliError, output, steps::Steps, text::Neutralizer};
use crate::postgres::{
    PgStore,
    read::{JobDetail, LogRow, LogStreamName},
};

/// How many pieces of output are read at once.
const PAGE: u32 = 500;
/// Between two looks at a job that says something.
const QUICK: Duration = Duration::from_millis(100);
/// Between two looks at a silent one.
const SLOW: Duration = Duration::from_millis(500);
/// How long an unreachable database is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes output to standard output and standard error, harmless where a person looks at it.
#[derive(Debug)]
pub(super) struct Sink {
    only: Option<LogStreamName>,
    neutral_out: bool,
    neutral_err: bool,
    streams: HashMap<(i64, bool), Neutralizer>,
    /// Standard output is for something else: everything goes to standard error.
    aside: bool,
    /// What was last written there did not end its line.
    open_line: bool,
}

impl Sink {
    /// `raw` sends bytes to terminals as they are; `only` shows one stream.
    pub(super) fn new(raw: bool, only: Option<LogStreamName>) -> Self {
        Self {
            only,
            neutral_out: !raw && io::stdout().is_terminal(),
            neutral_err: !raw && io::stderr().is_terminal(),
            streams: HashMap::new(),
            aside: false,
            open_line: false,
        }
    }

    /// Sends both streams to standard error.
    pub(super) fn aside(self) -> Self {
        Self { aside: true, ..self }
    }

    /// Lets a line of ours begin at the left.
    fn end_line(&mut self) -> Result<(), CliError> {
        if std::mem::take(&mut self.open_line) { put(true, b"\n") } else { Ok(()) }
    }

    fn write(&mut self, row: &LogRow) -> Result<(), CliError> {
        if self.only.is_some_and(|only| only != row.stream) {
            return Ok(());
        }
        match row.stream {
            LogStreamName::Stdout => self.send(row.epoch, false, &row.data),
            LogStreamName::Stderr => self.send(row.epoch, true, &row.data),
            LogStreamName::System => {
                self.end_line()?;
                for line in String::from_utf8_lossy(&row.data).lines() {
                    output::note(&format!("leasehold: {line}"));
                }
                Ok(())
            }
        }
    }

    fn send(&mut self, epoch: Epoch, is_error: bool, data: &[u8]) -> Result<(), CliError> {
        let to_err = is_error || self.aside;
        let neutral = if to_err { self.neutral_err } else { self.neutral_out };
        let shown;
        let bytes = if neutral {
            shown = self.streams.entry((epoch.0, is_error)).or_default().push(data);
            shown.as_bytes()
        } else {
            data
        };
        if let (true, Some(last)) = (self.aside, bytes.last()) {
            self.open_line = *last != b'\n';
        }
        put(to_err, bytes)
    }

    /// Shows what was held back: the first part of a character that never came to its end.
    pub(super) fn finish(&mut self) -> Result<(), CliError> {
        for ((_, is_error), mut stream) in std::mem::take(&mut self.streams) {
            put(is_error || self.aside, stream.finish().as_bytes())?;
        }
        self.end_line()
    }
}

fn put(is_error: bool, bytes: &[u8]) -> Result<(), CliError> {
    if is_error {
        let mut out = io::stderr().lock();
        out.write_all(bytes).and_then(|()| out.flush())?;
    } else {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush())?;
    }
    Ok(())
}

/// A reader of one job's output that remembers how far it has come.
pub(super) struct Follower<'a> {
    pub(super) store: &'a PgStore,
    pub(super) namespace: &'a Namespace,
    pub(super) job: JobId,
    pub(super) sink: Sink,
    pub(super) after: i64,
    /// Of a recipe: what it records is told as well.
    pub(super) steps: Option<Steps>,
}

impl Follower<'_> {
    /// Shows what came since the last time. True when there was anything.
    pub(super) async fn drain(&mut self) -> Result<bool, CliError> {
        let mut any = false;
        loop {
            let rows = self.store.read_logs(self.namespace, self.job, self.after, PAGE).await?;
            let Some(last) = rows.last() else { return Ok(any) };
            self.after = last.seq;
            any = true;
            for row in &rows {
                self.sink.write(row)?;
            }
        }
    }

    async fn look(&mut self) -> Result<(JobDetail, bool), CliError> {
        // The state first: what a job wrote was stored before it ended, so nothing can be missed.
        let detail =
            self.store.show_job(self.namespace, self.job).await?.ok_or_else(|| not_found(self.job))?;
        let mut any = self.drain().await?;
        if let Some(steps) = &mut self.steps {
            self.sink.end_line()?;
            any |= steps.tell(self.store, self.namespace, &detail).await?;
        }
        Ok((detail, any))
    }

    /// Shows output until the job has ended, and answers with how it ended. `seen` is called at every look.
    pub(super) async fn until_end(
        &mut self,
        mut seen: impl FnMut(&JobDetail, bool),
    ) -> Result<JobDetail, CliError> {
        let mut unreachable_since: Option<tokio::time::Instant> = None;
        loop {
            let pause = match self.look().await {
                Ok((detail, any)) => {
                    unreachable_since = None;
                    seen(&detail, any);
                    if detail.row.state.is_terminal() {
                        self.sink.finish()?;
                        return Ok(detail);
                    }
                    if any { QUICK } else { SLOW.min(QUICK * 2) }
                }
                Err(error) if error.exit == super::Exit::Unreachable => {
                    let since = *unreachable_since.get_or_insert_with(|| {
                        output::note(&format!("{}; trying again for {} s", error.line(), PATIENCE.as_secs()));
                        tokio::time::Instant::now()
                    });
                    if since.elapsed() > PATIENCE {
                        return Err(CliError::new(
                            super::Exit::Unreachable,
                            format!(
                                "{}; job {} goes on without us: leasehold job logs --follow {}",
                                error.line(),
                                self.job,
                                self.job
                            ),
                        ));
                    }
                    SLOW
                }
                Err(error) => return Err(error),
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// There is no such job.
pub(super) fn not_found(job: JobId) -> CliError {
    CliError::new(
        super::Exit::NotFound,
        format!("there is no job {job} in this namespace; see `leasehold jobs`"),
    )
}
