//! One cell: one job, one point, one deed; and what must be true of it afterwards.

use std::{
    fmt,
    time::{Duration, Instant},
};

use leasehold::{
    postgres::read::JobDetail,
    protocol::domain::{JobId, Namespace},
};
use leasehold_actors::testing::crash_points::{Deed, Fault, Side};
use rustix::process::Signal;

use super::{
    bed::Bed,
    process::{Resident, Victim},
    shapes::{Push, Shape, cancel_when_begun},
    victim::LEASE,
};
use crate::support::eventually::{eventually, pass};

/// What one lease, one pass of recovery and a second try may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
pub struct Cell {
    pub shape: Shape,
    pub call: &'static str,
    pub side: Side,
    pub deed: Deed,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}.{} ({:?})", self.deed, self.call, self.side, self.shape)
    }
}

/// How often a cell is played that the machine's standing still came between.
const TRIES: u32 = 3;

/// The leases of a job, and how each ended.
fn leases(detail: &JobDetail) -> String {
    let told = |lease: &leasehold::postgres::read::LeaseRow| {
        format!("{} {:?} by {} {:?}", lease.epoch, lease.how, lease.worker, lease.failure)
    };
    detail.leases.iter().map(told).collect::<Vec<_>>().join("; ")
}

/// What became of a cell.
#[derive(Debug)]
pub struct Played {
    pub runs: usize,
    pub attempt: i32,
    pub state: String,
}

impl Cell {
    fn faults(&self) -> Vec<Fault> {
        let mut faults = self.shape.prelude();
        faults.push(Fault::once(self.call, self.side, self.deed));
        faults
    }

    /// Plays it in a lane. Where the machine stood still meanwhile, calls are given up before they come to the point,
    /// and leases are lost that nobody planned to lose: then it proves nothing, and is played again.
    pub async fn play(&self, bed: &Bed, lane: usize) -> Result<Played, String> {
        let namespace = Bed::namespace(lane);
        for again in (0..TRIES).rev() {
            let begun = Instant::now();
            let job = self.shape.submit(bed, &namespace).await;
            let what = match Box::pin(self.play_once(bed, lane, job)).await {
                Ok(played) => return Ok(played),
                Err(what) => what,
            };
            let detail = bed.detail(&namespace, job).await;
            // A job that has not ended would be the trouble of the next one.
            let ended = detail.row.state.is_terminal();
            if again == 0 || !ended || !bed.has_stalled_since(begun) {
                return Err(format!("{what}; the job is {} after {}", detail.row.state, leases(&detail)));
            }
            println!("{self}: played again, since the machine stood still: {what}");
        }
        unreachable!("the last try returns")
    }

    async fn play_once(&self, bed: &Bed, lane: usize, job: JobId) -> Result<Played, String> {
        let namespace = Bed::namespace(lane);
        if let Some(fault) = self.shape.lost_by() {
            Victim::start(&bed.place(lane, "first"), &[fault]).dies().await?;
        }
        let healthy = match self.deed {
            Deed::Kill | Deed::Stop => {
                let mut victim = Victim::start(&bed.place(lane, "victim"), &self.faults());
                self.push(bed, &namespace, job, async { victim.signal(Signal::TERM) }).await;
                if self.deed == Deed::Kill {
                    victim.dies().await?;
                    Resident::start(&bed.place(lane, "healthy"), Vec::new()).await?
                } else {
                    victim.stops().await?;
                    let healthy = Resident::start(&bed.place(lane, "healthy"), Vec::new()).await?;
                    // Past the lease, and past the healthy one's next look.
                    pass(LEASE + Duration::from_secs(1)).await;
                    // It must notice by itself that its time is over, and drain with everything in order. The order to
                    // drain awaits it: claiming the job anew would be right, and another job than this cell's.
                    // Told once: a second time means to stop at once.
                    if self.shape.push() != Push::Drain {
                        victim.signal(Signal::TERM);
                    }
                    victim.signal(Signal::CONT);
                    victim.drains().await?;
                    healthy
                }
            }
            Deed::Hang => return Err("nothing of this matrix hangs".to_owned()),
            Deed::Panic | Deed::RequestLost | Deed::ReplyLost | Deed::ReplyLate(_) | Deed::ReplyAtCancel => {
                let mut victim = Resident::start(&bed.place(lane, "victim"), self.faults()).await?;
                let points = victim.points.clone();
                self.push(bed, &namespace, job, async { victim.tell_to_drain() }).await;
                tokio::time::timeout(SOON, points.until_done_at(self.call, self.side))
                    .await
                    .map_err(|_| format!("the point was not reached, only {:?}", points.reached()))?;
                if self.shape.push() == Push::Drain {
                    victim.end().await?;
                    Resident::start(&bed.place(lane, "healthy"), Vec::new()).await?
                } else {
                    victim
                }
            }
        };
        let ended = self.ends(bed, &namespace, job).await;
        // What became of the job tells more than how the worker ended.
        let drained = healthy.end().await;
        let ended = ended?;
        drained?;
        self.judge(bed, job, &ended).await
    }

    /// What is done to the job or its worker from outside, once work on it has begun.
    async fn push(&self, bed: &Bed, namespace: &Namespace, job: JobId, drain: impl Future<Output = ()>) {
        match self.shape.push() {
            Push::Nothing => {}
            Push::Cancel => cancel_when_begun(bed, namespace, job, self.shape).await,
            Push::Drain => {
                eventually(SOON, "the work begins", async || (bed.runs(job) > 0).then_some(())).await;
                drain.await;
            }
        }
    }

    async fn ends(&self, bed: &Bed, namespace: &Namespace, job: JobId) -> Result<JobDetail, String> {
        let begun = Instant::now();
        loop {
            let detail = bed.detail(namespace, job).await;
            if detail.row.state.is_terminal() {
                return Ok(detail);
            }
            if begun.elapsed() > SOON {
                return Err(format!("job {job} has not ended: {detail:?}"));
            }
            pass(Duration::from_millis(20)).await;
        }
    }

    async fn judge(&self, bed: &Bed, job: JobId, ended: &JobDetail) -> Result<Played, String> {
        let (state, failure) = self.shape.ends_as();
        let row = &ended.row;
        let found = row.failure.as_ref().and_then(|failure| Some((failure.kind?, failure.code.as_deref()?)));
        // A job that was retried keeps the failure of its last lease, so only that of a FAILED one counts.
        if row.state != state || (failure.is_some() && found != failure) {
            return Err(format!("job {job} must be {state} {failure:?}, and is {} {found:?}", row.state));
        }
        if row.attempt > 2 {
            return Err(format!("job {job} took {} attempts", row.attempt));
        }
        let begun = Instant::now();
        loop {
            let left = bed.containers(Some(job)).await;
            if left.is_empty() {
                break;
            }
            if begun.elapsed() > SOON {
                return Err(format!("containers are left of job {job}: {left:?}"));
            }
            pass(Duration::from_millis(50)).await;
        }
        let runs = bed.runs(job);
        let survives = !matches!(self.deed, Deed::Kill | Deed::Stop | Deed::Panic);
        let most = if survives && !self.shape.restarts() { 1 } else { 2 };
        if runs > most {
            return Err(format!("work on job {job} began {runs} times, {most} allowed"));
        }
        Ok(Played { runs, attempt: row.attempt, state: row.state.to_string() })
    }
}
