//! Counter-examples in words: one line a step, and below it how the world stands after it, wherever it
//! changed. `README.md` says how to read one.

use std::fmt::Write as _;

use crate::{
    action::{Action, Way},
    explore::Steps,
    names::{Job, JobSet, Worker},
    state::{
        Answer, Call, Grant, Lease, Origin, Outcome, PERMITS, Permit, Phase, Place, Request, Stage, State,
        Token, Who,
    },
};

/// The steps of a counter-example.
#[must_use]
pub fn print(steps: &Steps) -> String {
    let mut text = String::new();
    let mut known: Vec<String> = Vec::new();
    let mut epochs = [0; 2];
    for (n, pair) in steps.windows(2).enumerate() {
        let [(before, Some(action)), (after, _)] = pair else { continue };
        if let Action::Commit(who) = action
            && before.call(*who).is_some_and(|call| call.request.command() > 0)
        {
            for job in Job::ALL {
                let granted = before.job(job).place != after.job(job).place && after.lease(job).is_some();
                epochs[job.ix()] += u32::from(granted);
            }
        }
        let _ = writeln!(text, "  {:>2}. {}", n + 1, step(before, *action, after));
        let now = world(after, Some(epochs));
        for line in now.iter().filter(|line| !known.contains(line)) {
            let _ = writeln!(text, "        {line}");
        }
        known = now;
    }
    text
}

/// One step.
#[must_use]
pub fn step(before: &State, action: Action, after: &State) -> String {
    match action {
        Action::Tick => "a tick passes on every clock".into(),
        Action::Dispatch(job) => format!("dispatch: {job:?} becomes QUEUED"),
        Action::RequestCancel(job) => format!("request cancel: somebody asks for {job:?} to be cancelled"),
        Action::Claim(worker, n, way) => {
            format!("claim: {} reserves permit {} {}", name(worker), n + 1, on_its_way(way))
        }
        Action::Recover(worker, n, way) => {
            format!("recover: {} reserves permit {} {}", name(worker), n + 1, on_its_way(way))
        }
        Action::End(worker, n, outcome) => {
            let how = match outcome {
                Outcome::Terminal => "complete / fail / cancel",
                Outcome::Back => "release / reschedule / retry",
                Outcome::Postpone => "postpone recovery",
            };
            format!("{how}: {}'s work under permit {} has ended, and the end is sent", name(worker), n + 1)
        }
        Action::Reconcile(worker, n) => {
            format!("reconcile: {} asks what became of the grant of permit {}", name(worker), n + 1)
        }
        Action::Snapshot(who) => {
            format!("database: {} takes its snapshot{}", call(before, who), outcome(after, who))
        }
        Action::Take(who, rows) if rows.is_empty() => {
            format!("database: {} finds no row to take{}", call(before, who), outcome(after, who))
        }
        Action::CancelAndTake(who, rows) => format!(
            "request cancel: somebody asks for {} to be cancelled, and then {} takes its row",
            set(rows),
            call(before, who)
        ),
        Action::Take(who, rows) => {
            let clock = match after.call(who).map(|call| call.stage) {
                Some(Stage::Holding(_)) => String::new(),
                Some(Stage::Written(_)) => ", reads the clock and writes".into(),
                _ => format!(", reads the clock and may not write{}", outcome(after, who)),
            };
            format!("database: {} holds the row of {}{clock}", call(before, who), set(rows))
        }
        Action::ReadClock(who) => {
            format!("database: {} reads the clock and writes{}", call(before, who), outcome(after, who))
        }
        Action::Commit(who) => {
            let effect = effect(before, after, before.call(who).map(|call| call.request));
            format!("database: {} commits: {effect}", call(before, who))
        }
        Action::Deliver(worker, n) => {
            let answer = before.permit(worker, n).call.map_or(String::new(), progress);
            format!("{} gets the answer of permit {}: {answer}", name(worker), n + 1)
        }
        Action::Lose(worker, n) => {
            format!("{} waits in vain for the answer of permit {}: lost; it asks again", name(worker), n + 1)
        }
        Action::Delay(worker, n) => format!(
            "{} stops waiting for permit {} and asks again, while {} goes on, late",
            name(worker),
            n + 1,
            call(before, Who::Permit(worker, n))
        ),
        Action::LoseLate(n) => format!("{} is lost", call(before, Who::Late(n))),
        Action::ActorDies(worker, n) => {
            format!("the actor that holds permit {} of {} dies", n + 1, name(worker))
        }
        Action::Fence(worker, n) => {
            format!("the fence kills the workload of permit {} of {}", n + 1, name(worker))
        }
        Action::Blocks(worker, n) => {
            format!("the workload of permit {} of {} cannot be killed at its deadline", n + 1, name(worker))
        }
        Action::WorkloadDead(worker, n) => {
            format!("the stuck workload of permit {} of {} is dead at last", n + 1, name(worker))
        }
        Action::OrphanEnds(job) => format!("the container of {job:?} that nobody watches ends by itself"),
        Action::Restart(worker, kept) => {
            let late = if kept.contains(&true) { "; what it had sent goes on, late" } else { "" };
            format!("restart: {}'s process is killed, a new one starts{late}", name(worker))
        }
    }
}

fn on_its_way(way: Way) -> String {
    match way {
        Way::Late => "and stops waiting; the request is late, and a replay is sent".into(),
        Way::Looks => "and the statement takes its snapshot".into(),
        Way::Takes(rows) => format!("and the statement holds the row of {}", set(rows)),
    }
}

/// How the world stands, a line for each job, permit and late request. `epochs` are the grants so
/// far, where they were counted.
#[must_use]
pub fn world(s: &State, epochs: Option<[u32; 2]>) -> Vec<String> {
    let mut lines = Vec::new();
    for job in Job::ALL {
        let row = s.job(job);
        let cancel = if row.cancel { ", cancel requested" } else { "" };
        let orphan = if row.orphan { ", a container without a keeper" } else { "" };
        lines.push(format!(
            "{job:?}: {}{cancel}{orphan}",
            place(s, row.place, epochs.map(|grants| grants[job.ix()]))
        ));
    }
    for worker in Worker::ALL {
        for n in 0..PERMITS {
            lines.push(format!("{} permit {}: {}", name(worker), n + 1, permit(s.permit(worker, n))));
        }
    }
    lines.extend(s.late.iter().flatten().map(|call| format!("late: {}", describe(call))));
    lines
}

fn place(s: &State, place: Place, grant: Option<u32>) -> String {
    match place {
        Place::Pending => "PENDING".into(),
        Place::Queued => "QUEUED".into(),
        Place::Ended => "ended".into(),
        Place::Running(Lease { owner, token, left, renewed, .. }) => {
            let dead = if owner.alive { "" } else { "'s dead process" };
            let left = match left {
                0 => "expired".into(),
                1 => "1 tick left".into(),
                _ => format!("{left} ticks left"),
            };
            let same = s.jobs_where(|p| matches!(p, Place::Running(lease) if lease.token == token));
            let untouched = if renewed { "" } else { ", not renewed yet" };
            let shared = if same.iter().count() > 1 { ", token shared with the other job" } else { "" };
            let grant = grant.map_or(String::new(), |n| format!(", grant {n}"));
            format!("RUNNING for {}{dead}{grant}, {left}{untouched}{shared}", name(owner.worker))
        }
    }
}

fn permit(permit: &Permit) -> String {
    let text = match permit.phase {
        Phase::Free => "free".into(),
        Phase::Asking { repeat: false, .. } | Phase::Joined { .. } => "reserved".into(),
        Phase::Asking { repeat: true, .. } => "awaiting replay".into(),
        Phase::Starting { grant, origin: Origin::Claim } => format!("active, to start {}", held(grant)),
        Phase::Starting { grant, .. } => format!("active, took over {}", held(grant)),
        Phase::Running { grant, deadline } => {
            format!("active, RUNS {}, to be dead in {deadline}", held(grant))
        }
        Phase::Cleaning { grant, .. } => format!("active, cleans up {}", held(grant)),
        Phase::Ending { grant, .. } => format!("active, ends {}", held(grant)),
        Phase::Stuck { grant, blocked, deadline } => {
            let why = if blocked { "cannot be killed".into() } else { format!("to be dead in {deadline}") };
            format!("stuck, RUNS {}, {why}", held(grant))
        }
        Phase::Reconciling { grant } => format!("awaiting reconciliation of {}", held(grant)),
    };
    match permit.call {
        Some(call) => format!("{text} | {}: {}", request(call.request), progress(call)),
        None => text,
    }
}

/// A grant as its holder remembers it, and whether the row still holds its token.
fn held(grant: Grant) -> String {
    let token = match grant.token {
        Token::Is(_) => "",
        Token::Replaced => " (token replaced)",
        Token::Ended => " (end recorded)",
    };
    format!("{:?}{token}", grant.job)
}

fn describe(call: &Call) -> String {
    let dead = if call.from.alive { "" } else { "'s dead process" };
    format!("{} of {}{dead}: {}", request(call.request), name(call.from.worker), progress(*call))
}

fn call(s: &State, who: Who) -> String {
    let late = if matches!(who, Who::Late(_)) { "the late " } else { "the " };
    match s.call(who) {
        Some(call) => {
            let dead = if call.from.alive { "" } else { "'s dead process" };
            format!("{late}{} of {}{dead}", request(call.request), name(call.from.worker))
        }
        None => "a call".into(),
    }
}

/// What a commit changed.
fn effect(before: &State, after: &State, request: Option<Request>) -> String {
    let changes: Vec<_> = Job::ALL
        .into_iter()
        .filter(|job| before.job(*job).place != after.job(*job).place)
        .map(|job| match (before.job(job).place, after.job(job).place) {
            (Place::Running(_), Place::Running(_)) => match request {
                Some(Request::Renew(_)) => format!("{job:?} renewed"),
                Some(Request::Recover { .. }) => format!("{job:?} taken over"),
                Some(Request::End(..)) => format!("{job:?} expires at once"),
                _ => format!("{job:?} granted anew"),
            },
            (_, Place::Running(_)) => format!("{job:?} granted"),
            (_, Place::Pending) => format!("{job:?} given back"),
            (_, Place::Queued | Place::Ended) => format!("{job:?} ended"),
        })
        .collect();
    if changes.is_empty() { "nothing is changed".into() } else { changes.join(", ") }
}

/// What a statement sees or answered after its step.
fn outcome(after: &State, who: Who) -> String {
    match after.call(who) {
        Some(call) if matches!(call.stage, Stage::Snapped(_) | Stage::Replied(_)) => {
            format!(": {}", progress(call))
        }
        _ => String::new(),
    }
}

fn request(request: Request) -> String {
    match request {
        Request::Claim { command, repeat: false, .. } => format!("claim #{command}"),
        Request::Claim { command, repeat: true, .. } => format!("replay of claim #{command}"),
        Request::Recover { command, repeat: false, .. } => format!("recover #{command}"),
        Request::Recover { command, repeat: true, .. } => format!("replay of recover #{command}"),
        Request::Renew(grant) => format!("renew {:?}", grant.job),
        Request::End(grant, Outcome::Terminal) => format!("complete {:?}", grant.job),
        Request::End(grant, Outcome::Back) => format!("release {:?}", grant.job),
        Request::End(grant, Outcome::Postpone) => format!("postpone recovery of {:?}", grant.job),
        Request::Reconcile(grant) => format!("reconcile {:?}", grant.job),
    }
}

fn progress(call: Call) -> String {
    match call.stage {
        Stage::Sent => "under way".into(),
        Stage::Snapped(view) => match call.request {
            Request::Claim { .. } => format!("sees {} QUEUED", set(view.jobs)),
            Request::Recover { .. } => format!("sees {} expired", set(view.jobs)),
            Request::Renew(_) | Request::End(..) if view.live => {
                "sees the lease live by the clock of now".into()
            }
            Request::Renew(_) | Request::End(..) => "has its snapshot".into(),
            Request::Reconcile(_) => format!("sees an expiry {} ahead of the clock", view.left),
        },
        Stage::Holding(view) => format!("holds the row of {}", set(view.jobs)),
        Stage::Written(view) => format!("has written {}, not committed", set(view.jobs)),
        Stage::Replied(answer) => match answer {
            Answer::Granted(jobs) if jobs.is_empty() => "nothing granted".into(),
            Answer::Granted(jobs) => format!("granted {}", set(jobs)),
            Answer::Held { cancel: false } => "renewed".into(),
            Answer::Held { cancel: true } => "renewed, cancel requested".into(),
            Answer::NotLive => "lease_not_live".into(),
            Answer::Done => "recorded".into(),
            Answer::Live => "live".into(),
            Answer::Over => "expired or changed".into(),
        },
    }
}

fn set(jobs: JobSet) -> String {
    let names: Vec<_> = jobs.iter().map(|job| format!("{job:?}")).collect();
    if names.is_empty() { "nothing".into() } else { names.join(" and ") }
}

const fn name(worker: Worker) -> &'static str {
    match worker {
        Worker::W1 => "W1",
        Worker::W2 => "W2",
    }
}
