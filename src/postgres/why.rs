//! One sentence that says why a job is not running, for `leasehold job why`.

use chrono::{DateTime, SecondsFormat, Utc};
use leasehold_actors::{
    domain::{JobId, JobKind, JobState, Namespace},
    error::StoreError,
};

use super::{
    PgStore, error,
    row::Columns,
    sql_file::{Sql, sql},
    why_recipe::Beside,
    workflow::WorkflowState,
};
use crate::submission::AD_HOC;

const WHY: Sql = sql!("why_job", [TEXT, INT8]);

impl PgStore {
    /// Why the job is not running, or that it is, in one sentence for people.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn why(&self, namespace: &Namespace, job: JobId) -> Result<Option<String>, StoreError> {
        let rows = self.call("why", &WHY, &[&namespace.as_str(), &job.0]).await?;
        let Some(columns) = rows.first().map(|row| Columns::new("why", row)) else { return Ok(None) };
        if columns.get::<Option<&str>>("state")?.is_none() {
            return Err(error::missing_row("why", job));
        }
        Ok(Some(Facts::read(job, columns)?.sentence()))
    }
}

/// What the sentence is made of.
struct Facts {
    job: JobId,
    state: JobState,
    kind: JobKind,
    route: String,
    task: String,
    workflow: String,
    workflow_state: Option<WorkflowState>,
    /// The workflow's generation, where the job's is older.
    newer_generation: Option<i64>,
    overlap: &'static str,
    due_at: Option<DateTime<Utc>>,
    due: bool,
    held: bool,
    blocked_by: Option<i64>,
    last: Option<Last>,
    worker: Option<String>,
    node: Option<String>,
    granted_at: Option<DateTime<Utc>>,
    lease_expires_at: Option<DateTime<Utc>>,
    expired: bool,
    /// Since when its cleanup is pending, and when it is tried again.
    cleanup: Option<(DateTime<Utc>, DateTime<Utc>)>,
    cancel_requested: bool,
    ended_at: Option<DateTime<Utc>>,
    code: Option<String>,
    nodes: i64,
    usable_nodes: i64,
    free_slots: i64,
    workers: i64,
    serving: i64,
    free_permits: i64,
    ahead: i64,
    recipe: Option<Beside>,
}

/// How the latest lease ended.
struct Last {
    how: String,
    failure: String,
}

impl Facts {
    fn read(job: JobId, columns: Columns<'_>) -> Result<Self, StoreError> {
        let generation: i64 = columns.get("generation")?;
        let current: Option<i64> = columns.get("workflow_generation")?;
        let how: Option<String> = columns.get("last_how")?;
        let pending: Option<DateTime<Utc>> = columns.get("cleanup_pending_since")?;
        let failure = [columns.get::<Option<String>>("last_kind")?, columns.get("last_code")?];
        Ok(Self {
            job,
            state: columns.parse("state")?,
            kind: columns.parse("kind")?,
            route: columns.get("route")?,
            task: columns.get("task")?,
            workflow: columns.get("workflow")?,
            workflow_state: columns.parse_opt("workflow_state")?,
            newer_generation: current.filter(|current| *current > generation),
            overlap: if columns.get::<Option<bool>>("overlap_serial")? == Some(true) {
                "runs one at a time, in order"
            } else {
                "has its full number of runs"
            },
            due_at: columns.instant("due_at")?,
            due: columns.get::<Option<bool>>("due")?.unwrap_or(false),
            held: columns.get::<Option<DateTime<Utc>>>("held_due_at")?.is_some(),
            blocked_by: columns.get("blocked_by")?,
            last: how.map(|how| Last {
                how,
                failure: failure.into_iter().flatten().collect::<Vec<_>>().join(" "),
            }),
            worker: columns.get("worker_id")?,
            node: columns.get("node_id")?,
            granted_at: columns.instant("granted_at")?,
            lease_expires_at: columns.instant("lease_expires_at")?,
            expired: columns.get::<Option<bool>>("expired")?.unwrap_or(false),
            cleanup: pending.zip(columns.get("recovery_not_before")?),
            cancel_requested: columns.instant("cancel_requested_at")?.is_some(),
            ended_at: columns.instant("ended_at")?,
            code: columns.get("failure_code")?,
            nodes: columns.get("nodes")?,
            usable_nodes: columns.get("usable_nodes")?,
            free_slots: columns.get("free_slots")?,
            workers: columns.get("workers")?,
            serving: columns.get("serving")?,
            free_permits: columns.get("free_permits")?,
            ahead: columns.get("ahead")?,
            recipe: Beside::read(columns)?,
        })
    }

    fn sentence(&self) -> String {
        let (job, state) = (self.job, self.state);
        match state {
            JobState::Pending => format!("job {job} is PENDING: {}", self.pending()),
            JobState::Queued => format!("job {job} is QUEUED: {}", self.queued()),
            JobState::Running => format!("job {job} is RUNNING: {}", self.running()),
            _ => {
                let code = self.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
                format!("job {job} is not running because it ended {state}{code} at {}", time(self.ended_at))
            }
        }
    }

    fn pending(&self) -> String {
        if self.held {
            return format!(
                "its workflow {:?} is paused; `leasehold workflow resume` lets it go on",
                self.workflow
            );
        }
        if let Some(other) = self.blocked_by {
            return format!(
                "it waits for job {other} to end, because workflow {:?} {}; it is looked at again at {}",
                self.workflow,
                self.overlap,
                time(self.due_at)
            );
        }
        if self.due {
            return format!(
                "it is due since {} and has not been dispatched yet; that takes a running `leasehold worker`, \
                 `server` or `dev`",
                time(self.due_at)
            );
        }
        if let Some(task) = self.recipe.as_ref().and_then(Beside::unplaced) {
            let why = self.no_node().unwrap_or_else(|| {
                format!(
                    "none of {} had that and a free slot",
                    plural(self.usable_nodes, "usable runtime node")
                )
            });
            return format!(
                "no runtime node was found for {task}: {why}; it is looked for again at {}",
                time(self.due_at)
            );
        }
        let until = self.due_at.map(|at| time(Some(at)));
        if let Some(waits) = self.recipe.as_ref().and_then(|recipe| recipe.waits_for(until)) {
            return waits;
        }
        let when = time(self.due_at);
        match &self.last {
            Some(last) if last.how == "retrying" => {
                format!("its last attempt failed ({}); it is tried again at {when}", last.failure)
            }
            Some(last) => format!("it was {} and goes on at {when}", last.how),
            None => format!("it is not due before {when}"),
        }
    }

    fn queued(&self) -> String {
        if let (Some(current), true) = (self.newer_generation, self.workflow != AD_HOC) {
            return format!(
                "workflow {:?} has moved on to generation {current}, so it will end CANCELED (superseded)",
                self.workflow
            );
        }
        match self.workflow_state {
            Some(WorkflowState::Paused) => return format!("its workflow {:?} is paused", self.workflow),
            Some(WorkflowState::Terminated) => {
                return format!("its workflow {:?} was terminated", self.workflow);
            }
            _ => {}
        }
        if self.workers == 0 {
            return "no worker process is alive; start `leasehold worker`".to_owned();
        }
        if self.serving == 0 {
            return format!(
                "none of {} serves {}; see `leasehold worker list`",
                plural(self.workers, "live worker"),
                format!("{} {} {}", self.kind, self.route, self.task).trim_end()
            );
        }
        if self.kind == JobKind::Container
            && let Some(why) = self.no_node()
        {
            return why;
        }
        if let Some(needs) = self.recipe.as_ref().and_then(Beside::needs) {
            return needs;
        }
        let ahead = match self.ahead {
            0 => "it is the next of its kind".to_owned(),
            10_000 => "at least 10000 jobs are before it".to_owned(),
            1 => "1 job is before it".to_owned(),
            n => format!("{n} jobs are before it"),
        };
        let serving = plural(self.serving, "worker");
        let waits = if self.free_permits == 0 {
            format!("every permit of the {serving} that may run it is taken")
        } else {
            format!("it waits for the next claim by the {serving} that may run it")
        };
        format!("{waits}; {ahead}")
    }

    /// Why no runtime node can take anything at all.
    fn no_node(&self) -> Option<String> {
        if self.nodes == 0 {
            return Some("there is no runtime node; start `leasehold node`".to_owned());
        }
        if self.usable_nodes == 0 {
            let nodes = plural(self.nodes, "runtime node");
            return Some(format!(
                "none of {nodes} is READY with a fresh heartbeat; see `leasehold node list`"
            ));
        }
        (self.free_slots <= 0)
            .then(|| format!("every slot of {} is taken", plural(self.usable_nodes, "usable runtime node")))
    }

    fn running(&self) -> String {
        let worker = self.worker.as_deref().unwrap_or("?");
        let node = self.node.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
        if self.lease_expires_at.is_none() {
            return format!(
                "but the lease of worker {worker}{node} expires at no time (a row edited by hand?), so nobody takes it over; \
                 `leasehold doctor --audit` says what to do"
            );
        }
        if let (true, Some((since, again))) = (self.expired, self.cleanup) {
            return format!(
                "but the lease of worker {worker}{node} expired at {}, and its container could not be cleaned up since {}; \
                 that is tried again at {}",
                time(self.lease_expires_at),
                time(Some(since)),
                time(Some(again))
            );
        }
        if self.expired {
            return format!(
                "but the lease of worker {worker}{node} expired at {}, so nobody may work on it until it is taken over",
                time(self.lease_expires_at)
            );
        }
        let canceling = if self.cancel_requested { "; its cancel was requested" } else { "" };
        let refused = self.recipe.as_ref().and_then(Beside::refused);
        let refused = refused.map(|words| format!("; {words}")).unwrap_or_default();
        format!("worker {worker}{node} holds it since {}{canceling}{refused}", time(self.granted_at))
    }
}

fn time(at: Option<DateTime<Utc>>) -> String {
    at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn plural(n: i64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
