//! L10, operation by operation: the request is lost, the reply is lost, the reply comes late; at least twenty times
//! each. A table says how the jobs ended, and how often work on each began.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use leasehold::{
    postgres::{PgStore, cancel::CancelAnswer},
    protocol::{
        domain::{CommandId, JobId, JobState, Namespace, NewJob},
        ports::{End, Ended, LeaseStore, Postponed},
    },
};
use leasehold_actors::testing::crash_points::{Deed, Fault, Side};

use super::{
    bed::Bed,
    lanes::{LANES, play_all},
    process::{Resident, Victim},
    shapes::{Push, Shape, cancel_when_begun},
};
use crate::{
    scenarios::worker_process::example,
    support::{
        database::TestDatabase,
        eventually::{eventually, pass},
        jobs::{claimant, handler_job, held},
    },
};

/// What a worker asks of the store, the call in which it does, and the jobs that lead there.
const OPERATIONS: &[(&str, &str, Shape)] = &[
    ("dispatch", "store.dispatch", Shape::Due),
    ("claim", "store.claim", Shape::Handler),
    ("replay of a claim", "store.claim.replay", Shape::Replayed),
    ("first renewal", "store.renew.first", Shape::Handler),
    ("renew", "store.renew", Shape::Handler),
    ("report progress", "store.report_progress", Shape::Handler),
    ("attach", "store.attach", Shape::Container),
    ("append logs", "store.append_logs", Shape::Container),
    ("complete", "store.end.complete", Shape::Handler),
    ("fail", "store.end.fail", Shape::Failing),
    ("cancel", "store.end.cancel", Shape::CanceledHandler),
    ("release (drain)", "store.end.release", Shape::Drained),
    ("reconcile", "store.reconcile", Shape::Unconfirmed),
    ("recover", "store.recover", Shape::LostHandler),
    ("replay of a recovery", "store.recover.replay", Shape::LostReplayed),
    ("end lost", "store.end.lost", Shape::LostHandler),
];

const FAULTS: [(&str, Side, Deed); 3] = [
    ("request lost", Side::Before, Deed::RequestLost),
    ("reply lost", Side::After, Deed::ReplyLost),
    ("reply late", Side::After, Deed::ReplyLate(Duration::from_millis(700))),
];

/// Workers for each operation and fault, and jobs for each worker.
const WORKERS: usize = 3;
const JOBS: u32 = 7;

const SOON: Duration = Duration::from_secs(90);

/// How an operation went under one fault.
#[derive(Debug, Default)]
struct Tally {
    faults: u32,
    states: BTreeMap<String, u32>,
    runs: BTreeMap<usize, u32>,
}

/// The operations in their order, and the faults in theirs.
type Table = BTreeMap<(usize, usize), Tally>;

struct Task {
    row: usize,
    column: usize,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", OPERATIONS[self.row].0, FAULTS[self.column].0)
    }
}

impl Task {
    fn shape(&self) -> Shape {
        OPERATIONS[self.row].2
    }

    async fn play(&self, bed: &Bed, lane: usize) -> Result<Tally, String> {
        let ((_, call, shape), (_, side, deed)) = (OPERATIONS[self.row], FAULTS[self.column]);
        let (namespace, mut jobs) = (Bed::namespace(lane), Vec::new());
        let many = |fault: Fault| Fault { times: JOBS, ..fault };
        let mut faults: Vec<Fault> = shape.prelude().into_iter().map(many).collect();
        faults.push(many(Fault::once(call, side, deed)));
        let mut worker = None;
        if shape == Shape::Due {
            worker = Some(Resident::start(&bed.place(lane, "victim"), faults.clone()).await?);
        }
        for _ in 0..JOBS {
            let job = shape.submit(bed, &namespace).await;
            jobs.push(job);
            if shape == Shape::Due {
                // One after the other, so that each has a dispatch of its own.
                let waits = "select from leasehold.waiting where job_id = $1";
                eventually(SOON, "it is dispatched", async || {
                    bed.client.query_opt(waits, &[&job.0]).await.unwrap().is_none().then_some(())
                })
                .await;
            }
        }
        if let Some(fault) = shape.lost_by() {
            // Only when every job was renewed more than once.
            let renewals = Fault { deed: Deed::ReplyLate(Duration::ZERO), times: 2 * JOBS, ..fault.clone() };
            Victim::start(&bed.place(lane, "first"), &[renewals, fault]).dies().await?;
        }
        let mut worker = match worker {
            Some(worker) => worker,
            None => Resident::start(&bed.place(lane, "victim"), faults).await?,
        };
        match shape.push() {
            Push::Nothing => {}
            Push::Cancel => {
                join_all(jobs.iter().map(|job| cancel_when_begun(bed, &namespace, *job, shape))).await;
            }
            Push::Drain => {
                eventually(SOON, "all work begins", async || {
                    jobs.iter().all(|job| bed.runs(*job) > 0).then_some(())
                })
                .await;
                worker.tell_to_drain();
            }
        }
        let points = worker.points.clone();
        tokio::time::timeout(SOON, points.until_done_at(call, side))
            .await
            .map_err(|_| format!("only {} deeds of all were done", points.done()))?;
        if shape.push() == Push::Drain {
            worker.end().await?;
            worker = Resident::start(&bed.place(lane, "healthy"), Vec::new()).await?;
        }
        let ended = self.ends(bed, &namespace, &jobs).await?;
        worker.end().await?;
        let mut tally = Tally { faults: JOBS, ..Tally::default() };
        for (job, state) in ended {
            let runs = bed.runs(job);
            if state != shape.ends_as().0 || runs > if shape.restarts() { 2 } else { 1 } {
                return Err(format!("job {job} is {state} after {runs} runs"));
            }
            *tally.states.entry(state.to_string()).or_default() += 1;
            *tally.runs.entry(runs).or_default() += 1;
        }
        Ok(tally)
    }

    async fn ends(
        &self,
        bed: &Bed,
        namespace: &Namespace,
        jobs: &[JobId],
    ) -> Result<Vec<(JobId, JobState)>, String> {
        let begun = Instant::now();
        loop {
            let mut ended = Vec::new();
            for job in jobs {
                let row = bed.detail(namespace, *job).await.row;
                if row.state.is_terminal() {
                    ended.push((*job, row.state));
                }
            }
            if ended.len() == jobs.len() {
                return Ok(ended);
            }
            if begun.elapsed() > SOON {
                return Err(format!("of {jobs:?} only {ended:?} have ended"));
            }
            pass(Duration::from_millis(100)).await;
        }
    }
}

/// `docs/proof.md` shows what this prints.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_lost_or_late_of_an_operation_the_job_ends_as_it_should_after_one_run() {
    example("crash-worker");
    let bed = Bed::create(LANES, 2).await;
    let only = std::env::var("CRASH_ONLY").unwrap_or_default();
    let mut tasks: Vec<Task> = (0..OPERATIONS.len())
        .flat_map(|row| (0..FAULTS.len()).map(move |column| Task { row, column }))
        .flat_map(|task| (0..WORKERS).map(move |_| Task { ..task }))
        .filter(|task| OPERATIONS[task.row].1.contains(&only))
        .collect();
    // Containers last longest: they begin first, and are shared out.
    tasks.sort_by_key(|task| !task.shape().is_container());
    let begun = Instant::now();
    let results = play_all(tasks, async |task, lane| task.play(&bed, lane).await).await;
    let mut table = Table::new();
    for (task, tally) in &results.played {
        let sum = table.entry((task.row, task.column)).or_default();
        sum.faults += tally.faults;
        tally.states.iter().for_each(|(state, n)| *sum.states.entry(state.clone()).or_default() += n);
        tally.runs.iter().for_each(|(runs, n)| *sum.runs.entry(*runs).or_default() += n);
    }
    println!("{}", shown(&table));
    println!("in {:.0?}", begun.elapsed());
    results.assert_right();
    let fewest = table.values().map(|tally| tally.faults).min();
    assert!(fewest >= Some(20), "{fewest:?}");
    bed.assert_clean().await;
}

fn shown(table: &Table) -> String {
    let mut text = String::from("| operation |");
    FAULTS.iter().for_each(|(name, ..)| write!(text, " {name} |").unwrap());
    text.push_str("\n|---|---|---|---|\n");
    for (row, (name, ..)) in OPERATIONS.iter().enumerate() {
        write!(text, "| {name} |").unwrap();
        for column in 0..FAULTS.len() {
            let Some(tally) = table.get(&(row, column)) else { continue };
            let states: Vec<_> = tally.states.iter().map(|(state, n)| format!("{n} {state}")).collect();
            let runs: Vec<_> = tally.runs.iter().map(|(runs, n)| format!("{n} × {runs}")).collect();
            let (faults, states, runs) = (tally.faults, states.join(", "), runs.join(", "));
            write!(text, " {faults}: {states}; runs {runs} |").unwrap();
        }
        text.push('\n');
    }
    text
}

// ---------------------------------------------------------------------------------------------------
// What no worker asks, or seldom: the same by hand
// ---------------------------------------------------------------------------------------------------

/// Asks once more after the request, or the answer, was lost; or while the first answer is still on its way.
async fn again<T>(fault: &str, stores: &[PgStore; 2], ask: impl AsyncFn(&PgStore) -> T) -> (Option<T>, T) {
    match fault {
        "request lost" => (None, ask(&stores[0]).await),
        "reply lost" => (Some(ask(&stores[0]).await), ask(&stores[1]).await),
        _ => {
            let (late, repeat) = tokio::join!(ask(&stores[0]), ask(&stores[1]));
            (Some(late), repeat)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_cancel_reschedule_and_postpone_have_the_effect_of_one_when_they_are_repeated() {
    let database = TestDatabase::create().await;
    let stores = [database.store().await, database.store().await];
    let client = database.client().await;
    let count =
        async |sql: &str, job: JobId| -> i64 { client.query_one(sql, &[&job.0]).await.unwrap().get(0) };
    let owner = claimant("w1");
    let mut table = BTreeMap::<(&str, &str), u32>::new();
    for (fault, ..) in FAULTS {
        for round in 0..20 {
            let key = format!("{fault} {round}");
            let job = NewJob { idempotency_key: Some(key), ..handler_job("work") };
            let (first, repeat) =
                again(fault, &stores, async |store| store.submit(&job).await.unwrap()).await;
            assert!(first.as_ref().is_none_or(|first| first.job == repeat.job), "{fault}");
            assert!(
                first.is_none_or(|first| first.created != repeat.created),
                "{fault}: one of the two made it"
            );
            *table.entry(("submit", fault)).or_default() += 1;
            client.execute("delete from leasehold.ready where job_id = $1", &[&repeat.job.0]).await.unwrap();

            let grant = held(&stores[0], &client, &owner).await;
            let (authority, job) = (&grant.authority, grant.authority.job);
            let cancel = async |store: &PgStore| {
                store.request_cancel(&owner.namespace, job, Duration::from_secs(1)).await.unwrap()
            };
            let (first, repeat) = again(fault, &stores, cancel).await;
            assert!(matches!(repeat, CancelAnswer::Requested { .. }), "{fault}: {first:?} {repeat:?}");
            let ended = stores[0].end(authority, CommandId::generate(), &End::Cancel).await.unwrap();
            assert_eq!(ended, Ended::Terminal(JobState::Canceled));
            *table.entry(("request cancel", fault)).or_default() += 1;

            let grant = held(&stores[0], &client, &owner).await;
            let (authority, job) = (&grant.authority, grant.authority.job);
            let end = End::Reschedule {
                route: None,
                delay: Duration::from_secs(600),
                payload: None,
                wake: Vec::new(),
                publish: None,
            };
            let command = CommandId::generate();
            let reschedule = async |store: &PgStore| store.end(authority, command, &end).await.unwrap();
            let (_, repeat) = again(fault, &stores, reschedule).await;
            assert_eq!(repeat, Ended::Rescheduled, "{fault}");
            let leases = count("select count(*) from leasehold.lease_history where job_id = $1", job).await;
            let waits = count("select count(*) from leasehold.waiting where job_id = $1", job).await;
            assert_eq!((leases, waits), (1, 1), "{fault}");
            *table.entry(("reschedule", fault)).or_default() += 1;

            let grant = held(&stores[0], &client, &owner).await;
            let (authority, job) = (&grant.authority, grant.authority.job);
            let postpone = async |store: &PgStore| {
                store.postpone_recovery(authority, Duration::from_secs(600)).await.unwrap()
            };
            let (first, repeat) = again(fault, &stores, postpone).await;
            // It gives the lease up, so the repeat finds none; done it is exactly once.
            let done = first.into_iter().chain([repeat]).filter(|answer| *answer == Postponed::Done).count();
            let put_off = "select count(*) from leasehold.leases
                 where job_id = $1 and lease_expires_at <= now() and recovery_not_before > now()";
            assert_eq!((done, count(put_off, job).await), (1, 1), "{fault}");
            *table.entry(("postpone recovery", fault)).or_default() += 1;
        }
    }
    println!("{table:#?}");
    assert!(table.len() == 12 && table.values().all(|n| *n >= 20), "{table:?}");
}
