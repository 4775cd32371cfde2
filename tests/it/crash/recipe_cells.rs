//! One cell of the matrix of recipes: one job, one worker process that is killed at one point, and what must be true of
//! the job, its log and the ledger afterwards.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use leasehold::{
    postgres::{PgStore, read::JobDetail},
    protocol::{
        domain::{JobDefinition, JobId, JobState, Namespace, NewJob},
        ports::recipe::{Event, NewSignal, RecipeStore as _},
    },
};
use leasehold_actors::testing::crash_points::{Deed, Fault, Side};
use uuid::Uuid;

use super::{
    process::{Resident, Victim},
    victim::Place,
};
use crate::{
    recipes::spec_of,
    support::{database::TestDatabase, eventually::pass},
};

const SOON: Duration = Duration::from_secs(90);
/// How often a cell is played in which more leases were lost than the one that was to be lost.
const TRIES: u32 = 3;

/// A loop, a retried sequence, `parallel`, a timeout, signals, a child, a wait for time, and four moves between platforms.
pub const RECIPE: &str = r#"
id: r
execution: { platform: linux/amd64 }
sequence:
  - id: loop
    state:
      initial: poll
      states:
        - id: poll
          op: effect
          inputs: { give: "${{ transition.payload == null ? 1 : transition.payload + 1 }}" }
          transitions:
            - { to: done, when: "${{ states.poll.outputs >= 2 }}" }
            - { to: poll, payload: "${{ states.poll.outputs }}" }
        - { id: done, execution_needs: { platform: linux/arm64 }, op: effect, inputs: { give: "${{ states.poll.outputs }}" } }
  - id: again
    retry: { max_attempts: 2, backoff: 300ms }
    sequence:
      - { id: a, op: effect, inputs: { give: 5 } }
      - { id: b, op: effect, inputs: { fails_in: "again!1", give: 6 }, timeout: 1h }
  - { id: early, op: wait_for_signal, inputs: { name: early } }
  - { id: child, op: child_job, inputs: { handler: work, payload: { ms: 0, first_ms: 0, fails: false } } }
  - { id: later, op: wait_for_signal, inputs: { name: later } }
  - { id: nap, op: sleep, inputs: { for: 1200ms } }
  - id: both
    parallel:
      - id: left
        sequence:
          - { id: a, op: effect, inputs: { ms: 60, give: 7 } }
          - { id: b, op: effect, inputs: { ms: 60 } }
      - { id: right, op: effect, inputs: { ms: 90, give: 8 } }
      - id: bad
        sequence: [ { id: a, op: effect, inputs: { ms: 30, fails_in: both } } ]
        catch: { op: effect, inputs: { give: "${{ error.path }}" } }
      - { id: arm, execution_needs: { platform: linux/arm64 }, op: effect }
  - { id: last, op: effect, inputs: { give: "${{ sequence.both.outputs.right }}" } }
"#;

/// Every task, and the platform that it needs.
pub const TASKS: &[(&str, &str)] = &[
    ("loop/poll#1", "amd64"),
    ("loop/poll#2", "amd64"),
    ("loop/done#1", "arm64"),
    ("again!1/a", "amd64"),
    ("again!1/b", "amd64"),
    ("again!2/a", "amd64"),
    ("again!2/b", "amd64"),
    ("both/left/a", "amd64"),
    ("both/left/b", "amd64"),
    ("both/right", "amd64"),
    ("both/bad/a", "amd64"),
    ("both/bad/catch", "amd64"),
    ("both/arm", "arm64"),
    ("last", "amd64"),
];

/// Every handoff: the task that does not fit, who has the job then, and where it goes.
pub const HANDOFFS: &[(&str, &str, &str)] = &[
    ("loop/done#1", "amd64", "needs:arm64"),
    ("again!1/a", "arm64", "needs:amd64"),
    ("both/arm", "amd64", "needs:arm64"),
    ("last", "arm64", "needs:amd64"),
];

#[derive(Debug, Clone)]
pub struct Cell {
    /// Who is killed.
    pub platform: &'static str,
    pub call: &'static str,
    pub side: Side,
    pub place: Option<&'static str>,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "kill at {}.{} of {} on {}",
            self.call,
            self.side,
            self.place.unwrap_or("it"),
            self.platform
        )
    }
}

/// What an undisturbed run comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    pub output: String,
    pub events: Vec<String>,
}

/// What became of a cell.
#[derive(Debug)]
pub struct Played {
    /// Effects that were made twice.
    pub twice: usize,
    /// Whether it had to be played again.
    pub tries: u32,
}

/// A line of the ledger.
#[derive(Debug, Clone)]
struct Effect {
    platform: String,
    key: String,
    epoch: i64,
    process: u32,
}

pub struct Bed {
    database: TestDatabase,
    store: PgStore,
    folder: PathBuf,
}

impl Bed {
    pub async fn create() -> Self {
        let database = TestDatabase::create().await;
        let store = database.store().await;
        let folder = std::env::temp_dir().join(format!("lh-crash-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        Self { database, store, folder }
    }

    fn place(&self, lane: usize, name: &str, platform: &str) -> Place {
        Place {
            url: self.database.url().to_owned(),
            namespace: namespace(lane).to_string(),
            name: format!("{name}-{platform}"),
            ledger: self.folder.join(format!("ledger-{lane}")),
            platform: Some(platform.to_owned()),
        }
    }

    async fn detail(&self, lane: usize, job: JobId) -> Result<JobDetail, String> {
        let found = self.store.show_job(&namespace(lane), job).await;
        found.map_err(|e| e.to_string())?.ok_or_else(|| "the job is gone".to_owned())
    }

    async fn events(&self, lane: usize, job: JobId) -> Result<Vec<Event>, String> {
        self.store.events(&namespace(lane), job, 0).await.map_err(|e| e.to_string())
    }

    /// The ledger's lines of a job that begin with this word.
    fn lines(&self, lane: usize, word: &str, job: JobId) -> Vec<Vec<String>> {
        let ledger = std::fs::read_to_string(self.folder.join(format!("ledger-{lane}"))).unwrap_or_default();
        let words = ledger.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        words.filter(|line| line[0] == word && line[1] == job.to_string()).collect()
    }

    /// An undisturbed run.
    pub async fn undisturbed(&self, lane: usize) -> Result<Expected, String> {
        let job = self.submit(lane).await?;
        let amd = Resident::start(&self.place(lane, "first", "amd64"), Vec::new()).await?;
        let arm = Resident::start(&self.place(lane, "first", "arm64"), Vec::new()).await?;
        let detail = self.drive(lane, job).await?;
        amd.end().await?;
        arm.end().await?;
        let ran = self.lines(lane, "effect", job);
        if ran.len() != TASKS.len() {
            return Err(format!("{} effects: {ran:?}", ran.len()));
        }
        self.found(lane, job, &detail).await
    }

    async fn found(&self, lane: usize, job: JobId, detail: &JobDetail) -> Result<Expected, String> {
        if detail.row.state != JobState::Completed {
            return Err(format!("the job is {} {:?}", detail.row.state, detail.row.failure));
        }
        let events = self.events(lane, job).await?;
        if !events.iter().map(|event| event.ordinal).eq(1..=events.len() as i64) {
            return Err(format!("ordinals have gaps: {events:?}"));
        }
        let mut names: Vec<String> =
            events.iter().map(|event| format!("{} {}", event.path, event.body.sort())).collect();
        names.sort();
        let output = detail.output.as_ref().map(|output| output.get().to_owned()).unwrap_or_default();
        Ok(Expected { output, events: names })
    }

    async fn submit(&self, lane: usize) -> Result<JobId, String> {
        let mut job = NewJob::ad_hoc(JobDefinition::Recipe(spec_of(RECIPE)));
        job.namespace = namespace(lane);
        let job = self.store.submit(&job).await.map_err(|e| e.to_string())?.job;
        self.signal(lane, job, "early").await?;
        Ok(job)
    }

    async fn signal(&self, lane: usize, job: JobId, name: &str) -> Result<(), String> {
        let signal = NewSignal {
            name: name.to_owned(),
            data: "{\"by\": \"me\"}".to_owned(),
            key: Some(name.to_owned()),
        };
        self.store.send_signal(&namespace(lane), job, &signal).await.map(drop).map_err(|e| e.to_string())
    }

    /// Sends the later signal once it is waited for, until the job has ended.
    async fn drive(&self, lane: usize, job: JobId) -> Result<JobDetail, String> {
        let begun = Instant::now();
        let mut sent = false;
        loop {
            // A busy machine may not answer in time: it is asked again.
            if let Ok(detail) = self.detail(lane, job).await {
                if detail.row.state.is_terminal() {
                    return Ok(detail);
                }
                if !sent && detail.row.state == JobState::Pending {
                    let events = self.events(lane, job).await.unwrap_or_default();
                    if events.iter().any(|event| event.body.sort() == "child_ended") {
                        sent = self.signal(lane, job, "later").await.is_ok();
                    }
                }
                if begun.elapsed() > SOON {
                    return Err(format!("job {job} does not end: {detail:?}"));
                }
            }
            pass(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn namespace(lane: usize) -> Namespace {
    format!("recipes-{lane}").parse().unwrap()
}

impl Cell {
    fn fault(&self) -> Fault {
        Fault { place: self.place.map(str::to_owned), ..Fault::once(self.call, self.side, Deed::Kill) }
    }

    /// Plays it in a lane. Where more leases were lost than the one of the killed worker, since the machine stood still,
    /// it proves nothing, and is played again.
    pub async fn play(&self, bed: &Bed, lane: usize, expected: &Expected) -> Result<Played, String> {
        for tries in 1..=TRIES {
            let job = bed.submit(lane).await?;
            let played = Box::pin(self.play_once(bed, lane, job, expected)).await;
            let detail = bed.detail(lane, job).await?;
            let lost =
                detail.leases.iter().filter(|lease| ["expired", "retrying"].contains(&lease.how.as_str()));
            let lost = lost.count();
            match played {
                Ok(twice) => return Ok(Played { twice, tries }),
                Err(what) if lost > 1 && tries < TRIES && detail.row.state.is_terminal() => {
                    println!("{self}: played again, {lost} leases were lost: {what}");
                }
                Err(what) => {
                    let leases: Vec<String> = detail
                        .leases
                        .iter()
                        .map(|lease| format!("{} {} by {}", lease.epoch, lease.how.as_str(), lease.worker))
                        .collect();
                    return Err(format!(
                        "{what}; the job is {} after {}",
                        detail.row.state,
                        leases.join("; ")
                    ));
                }
            }
        }
        unreachable!("the last try returns")
    }

    async fn play_once(
        &self,
        bed: &Bed,
        lane: usize,
        job: JobId,
        expected: &Expected,
    ) -> Result<usize, String> {
        let other = if self.platform == "amd64" { "arm64" } else { "amd64" };
        let beside = Resident::start(&bed.place(lane, "beside", other), Vec::new()).await?;
        let mut victim = Victim::start(&bed.place(lane, "victim", self.platform), &[self.fault()]);
        let driven = bed.drive(lane, job);
        let mut driven = std::pin::pin!(driven);
        let death = async {
            tokio::select! {
                died = victim.dies() => died,
                ended = &mut driven => Err(format!("it ended before anybody died: {:?}", ended.map(|d| d.row.state))),
            }
        };
        let died = death.await;
        let healthy = Resident::start(&bed.place(lane, "healthy", self.platform), Vec::new()).await?;
        let ended = match &died {
            Ok(()) => driven.await,
            Err(what) => Err(what.clone()),
        };
        let drained = (healthy.end().await, beside.end().await);
        let detail = ended?;
        died?;
        drained.0?;
        drained.1?;
        let found = bed.found(lane, job, &detail).await?;
        if found != *expected {
            return Err(format!("{found:?} and not {expected:?}"));
        }
        self.judge(bed, lane, job, victim.pid()).await
    }

    /// How often an effect may be there twice: only where the kill came between it and its record.
    fn may_be_twice(&self, path: &str) -> bool {
        let is_between = (self.call == "recipe.effect" && self.side == Side::After)
            || (self.call == "recipe.record.task" && self.side == Side::Before);
        let here = self.place == Some(path) && is_between;
        // Branches run at once: any of them may stand between its effect and its record when another one's kill comes.
        let beside = path.starts_with("both/") && self.place.is_some_and(|place| place.starts_with("both/"));
        here || (beside && self.place != Some(path))
    }

    async fn judge(&self, bed: &Bed, lane: usize, job: JobId, dead: u32) -> Result<usize, String> {
        let mut effects: BTreeMap<String, Vec<Effect>> = BTreeMap::new();
        for line in bed.lines(lane, "effect", job) {
            let [_, _, path, platform, key, epoch, process] = line.as_slice() else {
                return Err(format!("{line:?} in the ledger"));
            };
            effects.entry(path.clone()).or_default().push(Effect {
                platform: platform.clone(),
                key: key.clone(),
                epoch: epoch.parse().unwrap(),
                process: process.parse().unwrap(),
            });
        }
        let recorded: BTreeMap<String, i64> = bed
            .events(lane, job)
            .await?
            .into_iter()
            .filter(|event| event.body.sort() == "task")
            .map(|event| (event.path, event.epoch.0))
            .collect();
        if effects.len() != TASKS.len() || recorded.len() != TASKS.len() {
            return Err(format!("effects {effects:?}, recorded {recorded:?}"));
        }
        let mut twice = 0;
        for (path, platform) in TASKS {
            let made = &effects[*path];
            if made.iter().any(|effect| effect.platform != *platform || effect.key != made[0].key) {
                return Err(format!("{path} on another platform, or under another key: {made:?}"));
            }
            // What is recorded was made under the lease that recorded it, and never again.
            let last = made.last().expect("one at least");
            if last.epoch != recorded[*path] {
                return Err(format!(
                    "{path} ran again after it was recorded in {}: {made:?}",
                    recorded[*path]
                ));
            }
            match made.as_slice() {
                [_] => {}
                [first, _] if self.may_be_twice(path) && first.process == dead => twice += 1,
                _ => return Err(format!("{path} {} times: {made:?}", made.len())),
            }
        }
        let must_be_twice = self.place.is_some_and(|place| self.may_be_twice(place));
        if must_be_twice && twice == 0 {
            return Err("the killed effect was not made again".to_owned());
        }
        self.judge_handoffs(bed, lane, job, dead).await?;
        Ok(twice)
    }

    /// Nothing that was not acknowledged was reported, and nothing was reported twice.
    async fn judge_handoffs(&self, bed: &Bed, lane: usize, job: JobId, dead: u32) -> Result<(), String> {
        let told = bed.lines(lane, "handoff", job);
        let detail = bed.detail(lane, job).await?;
        let given_back = detail.leases.iter().filter(|lease| lease.how.as_str() == "rescheduled").count();
        if told.len() > given_back {
            return Err(format!(
                "{} handoffs were reported, {given_back} leases given back: {told:?}",
                told.len()
            ));
        }
        let by_the_dead: Vec<&str> = told
            .iter()
            .filter(|line| line.last() == Some(&dead.to_string()))
            .map(|line| line[2].as_str())
            .collect();
        let killed_at = |call: &str, side: Side| self.call == call && self.side == side;
        let unreported = match self.call {
            "recipe.callback" if killed_at("recipe.callback", Side::After) => {
                let place = self.place.unwrap_or_default();
                if by_the_dead.last() != Some(&place) {
                    return Err(format!("{place} was acknowledged and not reported: {by_the_dead:?}"));
                }
                None
            }
            "recipe.callback" => self.place,
            "recipe.reschedule" => {
                HANDOFFS.iter().find(|(_, _, goes)| Some(*goes) == self.place).map(|(path, _, _)| *path)
            }
            _ => None,
        };
        match unreported {
            Some(path) if by_the_dead.contains(&path) => {
                Err(format!("the handoff of {path} was reported before it was acknowledged"))
            }
            _ => Ok(()),
        }
    }
}
