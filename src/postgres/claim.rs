//! Claim: open claims and listed ones, gathered like everything else, through one statement.
//!
//! The statement inserts its command ids plainly. A claim whose id has run before fails as a whole and surely
//! changed nothing; what the first one granted, as far as it is still live, is then its answer.

use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    sync::Arc,
    time::Instant,
};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use leasehold_actors::{
    domain::{CommandId, JobKind, RecipeSpec, Route},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{Claimant, DispatchedJob, Grant, ListedAnswer, recipe::Facts},
};
use sha2::{Digest, Sha256};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    batch::Pending,
    error,
    grant::{self, recall},
    marks::{Marks, Place},
    pool::{Lane, Pools},
    sql_file::{Sql, sql},
};

pub(crate) static CLAIM: Sql = sql!(
    "claim",
    [
        TEXT,
        UUID_ARRAY,
        TEXT_ARRAY,
        UUID_ARRAY,
        INT4_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        BOOL_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        INT2_ARRAY,
        TIMESTAMPTZ_ARRAY,
        INT8_ARRAY,
        UUID_ARRAY,
        INT4_ARRAY,
        INT8_ARRAY,
        INT8_ARRAY,
        INT4_ARRAY,
        UUID_ARRAY,
        INT4_ARRAY,
        BOOL,
        INT4,
        INT4,
        INT4,
        INT4,
        INT8,
        INT8,
        INT8,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT
    ]
);

/// How often a statement is tried that lost a race for a slot which it cannot give back.
const RACES: usize = 5;
/// How often an open claim goes on after it met nothing but jobs that must wait for others.
const ROUNDS: usize = 8;

/// What a claim asks for.
#[derive(Debug)]
pub(super) enum Wish {
    /// The next so many jobs of these routes.
    Open {
        routes: Arc<[Route]>,
        limit: usize,
        /// What the worker has, for RECIPE jobs.
        facts: Option<Arc<Facts>>,
    },
    /// Exactly these.
    Listed { jobs: Vec<DispatchedJob> },
}

/// One claim.
#[derive(Debug)]
pub(super) struct ClaimAsk {
    pub(super) owner: Arc<Claimant>,
    pub(super) command: CommandId,
    pub(super) repeat: bool,
    pub(super) lease_ms: i32,
    pub(super) wish: Wish,
}

/// The answers of a claim, in order.
pub(super) type ClaimReply = Vec<ListedAnswer>;

impl ClaimAsk {
    pub(super) fn rows(&self) -> usize {
        match &self.wish {
            Wish::Open { limit, .. } => *limit,
            Wish::Listed { jobs } => jobs.len(),
        }
    }

    /// The jobs of a listed claim.
    pub(super) fn listed(&self) -> &[DispatchedJob] {
        match &self.wish {
            Wish::Open { .. } => &[],
            Wish::Listed { jobs } => jobs,
        }
    }

    pub(super) fn operation(&self) -> &'static str {
        match self.wish {
            Wish::Open { .. } => "claim",
            Wish::Listed { .. } => "claim_listed",
        }
    }

    /// Over everything that was asked for: another request under the same command id is noticed by it.
    pub(super) fn hash(&self) -> String {
        let mut hash = Sha256::new();
        let mut put = |bytes: &[u8]| {
            hash.update(bytes.len().to_le_bytes());
            hash.update(bytes);
        };
        put(self.operation().as_bytes());
        put(self.owner.namespace.as_str().as_bytes());
        put(self.owner.worker.as_str().as_bytes());
        put(self.owner.process.0.as_bytes());
        put(&self.lease_ms.to_le_bytes());
        match &self.wish {
            Wish::Open { routes, limit, .. } => {
                put(&limit.to_le_bytes());
                for route in routes.iter() {
                    put(route.kind.as_str().as_bytes());
                    put(route.name.as_bytes());
                    put(route.task.as_bytes());
                }
            }
            Wish::Listed { jobs } => {
                for job in jobs {
                    put(&job.job.0.to_le_bytes());
                    put(&job.generation.to_le_bytes());
                    put(&job.dispatch_attempt.to_le_bytes());
                }
            }
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What claims need besides their question.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    pub(super) pools: Pools,
    pub(super) marks: Arc<Marks>,
}

type Call = Pending<ClaimAsk, ClaimReply>;

/// Answers a batch: claims that can share a statement do.
pub(super) async fn together(desk: &Desk, batch: Vec<Call>) {
    let mut groups: Vec<Vec<Call>> = Vec::new();
    for call in batch {
        match groups.iter_mut().find(|group| may_share(&group[0].ask, &call.ask)) {
            Some(group) => group.push(call),
            None => groups.push(vec![call]),
        }
    }
    join_all(groups.into_iter().map(|group| group_of_equals(desk, group))).await;
}

fn may_share(a: &ClaimAsk, b: &ClaimAsk) -> bool {
    a.owner.namespace == b.owner.namespace
        && match (&a.wish, &b.wish) {
            (Wish::Open { routes: x, facts: a, .. }, Wish::Open { routes: y, facts: b, .. }) => {
                (Arc::ptr_eq(x, y) || x == y) && a == b
            }
            (Wish::Listed { .. }, Wish::Listed { .. }) => true,
            _ => false,
        }
}

async fn group_of_equals(desk: &Desk, mut group: Vec<Call>) {
    while !group.is_empty() {
        let (now, later) = without_common_jobs(group);
        send(desk, now).await;
        group = later;
    }
}

/// A statement grants a job to one claim. Claims for the same job, or under the same command, go one after the other.
fn without_common_jobs(group: Vec<Call>) -> (Vec<Call>, Vec<Call>) {
    let (mut jobs, mut commands) = (HashSet::new(), HashSet::new());
    group.into_iter().partition(|call| {
        if !commands.insert(call.ask.command) {
            return false;
        }
        let Wish::Listed { jobs: listed } = &call.ask.wish else { return true };
        if listed.iter().any(|job| jobs.contains(&job.job)) {
            return false;
        }
        jobs.extend(listed.iter().map(|job| job.job));
        true
    })
}

async fn send(desk: &Desk, calls: Vec<Call>) {
    let asks: Vec<&ClaimAsk> = calls.iter().map(|call| &call.ask).collect();
    match claim(desk, &asks).await {
        Ok(replies) => {
            for (call, reply) in calls.into_iter().zip(replies) {
                call.answer(Ok(reply));
            }
        }
        // It surely granted nothing. One of them may have run before, or be at fault otherwise.
        Err(e) if e.applied == Applied::No && may_be_one_of_them(&e) => {
            for call in calls {
                let answer = alone(desk, &call.ask).await;
                call.answer(answer);
            }
        }
        Err(e) => {
            for call in calls {
                call.answer(Err(e.clone()));
            }
        }
    }
}

fn may_be_one_of_them(e: &StoreError) -> bool {
    matches!(
        e.kind,
        StoreErrorKind::Refused
            | StoreErrorKind::RowLocked
            | StoreErrorKind::Timeout
            | StoreErrorKind::CommandConflict
    )
}

/// One claim by itself, and the recorded answer if it has run before.
pub(super) async fn alone(desk: &Desk, ask: &ClaimAsk) -> Result<ClaimReply, StoreError> {
    match claim(desk, &[ask]).await {
        Ok(mut replies) => Ok(replies.pop().unwrap_or_default()),
        Err(e) if e.kind == StoreErrorKind::CommandConflict => {
            // It stood in the way a moment ago; where it is gone, whoever recorded it was undone.
            recall(&desk.pools, ask).await?.ok_or(StoreError { kind: StoreErrorKind::RowLocked, ..e })
        }
        Err(e) => Err(e),
    }
}

/// Runs the statement until it has something to say. `CommandConflict`: one of the commands has run before.
async fn claim(desk: &Desk, asks: &[&ClaimAsk]) -> Result<Vec<ClaimReply>, StoreError> {
    match &asks[0].wish {
        Wish::Open { routes, .. } => open(desk, asks, routes).await,
        Wish::Listed { .. } => listed(desk, asks).await,
    }
}

async fn open(desk: &Desk, asks: &[&ClaimAsk], routes: &[Route]) -> Result<Vec<ClaimReply>, StoreError> {
    let namespace = &asks[0].owner.namespace;
    let mut replies = vec![ClaimReply::new(); asks.len()];
    for _ in 0..ROUNDS {
        let look = desk.marks.look(namespace, routes);
        let started = Instant::now();
        let from = look.from.clone().unwrap_or_else(|| vec![Place::FIRST; routes.len()]);
        // What a statement held that failed, others have skipped meanwhile, and set their marks above it.
        let rows = put(desk, asks, routes, &from, &List::default())
            .await
            .inspect_err(|_| desk.marks.forget(namespace))?;
        if look.from.is_none() {
            desk.marks.looked(&look, namespace, routes, started.elapsed());
        }
        let mut held_back = false;
        for row in &rows {
            match Granted::read(row, asks)? {
                Granted::HeldBack { .. } => held_back = true,
                Granted::To { request, grant, place } => {
                    desk.marks.took(&look, namespace, &grant.route, place);
                    replies[request].push(ListedAnswer::Granted(grant));
                }
            }
        }
        if replies.iter().any(|reply| !reply.is_empty()) || asks.iter().any(|ask| ask.repeat) {
            break;
        }
        // Nothing above the marks: there may be something below, if a look at everything is allowed again.
        if !held_back && (look.from.is_none() || desk.marks.look(namespace, routes).from.is_some()) {
            break;
        }
    }
    Ok(replies)
}

async fn listed(desk: &Desk, asks: &[&ClaimAsk]) -> Result<Vec<ClaimReply>, StoreError> {
    let list = List::of(asks);
    let rows = put(desk, asks, &[], &[], &list).await?;
    let mut granted: HashMap<Uuid, Box<Grant>> = HashMap::new();
    let mut held_back = HashMap::new();
    for row in &rows {
        match Granted::read(row, asks)? {
            Granted::HeldBack { job, blocker } => {
                held_back.insert(job, blocker);
            }
            Granted::To { grant, .. } => {
                granted.insert(grant.authority.token.expose_to_store(), grant);
            }
        }
    }
    // The token says which entry of the list a grant is for.
    let mut replies: Vec<Vec<Option<ListedAnswer>>> = Vec::with_capacity(asks.len());
    for (number, ask) in (1i32..).zip(asks) {
        let Wish::Listed { jobs } = &ask.wish else { continue };
        let mut answers: Vec<Option<ListedAnswer>> = vec![None; jobs.len()];
        for (at, token) in list.of_request(number) {
            answers[at] = granted.remove(&token).map(ListedAnswer::Granted);
        }
        replies.push(answers);
    }
    grant::with_reasons(&desk.pools, asks, replies, &held_back).await
}

/// What listed claims present, as arrays; every entry has the token that a grant of it gets.
#[derive(Default)]
struct List {
    jobs: Vec<i64>,
    generations: Vec<i64>,
    attempts: Vec<i32>,
    tokens: Vec<Uuid>,
    requests: Vec<i32>,
    /// Where each entry stands in its own request.
    places: Vec<usize>,
}

impl List {
    fn of(asks: &[&ClaimAsk]) -> Self {
        let mut list = Self::default();
        for (number, ask) in (1i32..).zip(asks) {
            let Wish::Listed { jobs } = &ask.wish else { continue };
            let mut seen = HashSet::new();
            for (place, job) in jobs.iter().enumerate().filter(|(_, job)| seen.insert(**job)) {
                list.jobs.push(job.job.0);
                list.generations.push(job.generation);
                list.attempts.push(job.dispatch_attempt);
                list.requests.push(number);
                list.places.push(place);
            }
        }
        list.tokens = grant::tokens(list.jobs.len());
        list
    }

    fn of_request(&self, number: i32) -> impl Iterator<Item = (usize, Uuid)> {
        self.places
            .iter()
            .zip(&self.tokens)
            .zip(&self.requests)
            .filter(move |(_, of)| **of == number)
            .map(|((place, token), _)| (*place, *token))
    }
}

/// Builds the arrays and sends the statement; races for slots are run again.
async fn put(
    desk: &Desk,
    asks: &[&ClaimAsk],
    routes: &[Route],
    from: &[Place],
    list: &List,
) -> Result<Vec<Row>, StoreError> {
    let operation = asks[0].operation();
    let namespace = asks[0].owner.namespace.as_str();
    let commands: Vec<Uuid> = asks.iter().map(|ask| ask.command.0).collect();
    let workers: Vec<&str> = asks.iter().map(|ask| ask.owner.worker.as_str()).collect();
    let processes: Vec<Uuid> = asks.iter().map(|ask| ask.owner.process.0).collect();
    let leases: Vec<i32> = asks.iter().map(|ask| ask.lease_ms).collect();
    let hashes: Vec<String> = asks.iter().map(|ask| ask.hash()).collect();
    let operations: Vec<&str> = asks.iter().map(|ask| ask.operation()).collect();
    // An empty first answer of an open claim needs no memory; an empty answer to a repeat must stay empty.
    let always: Vec<bool> =
        asks.iter().map(|ask| ask.repeat || matches!(ask.wish, Wish::Listed { .. })).collect();

    let kinds: Vec<&str> = routes.iter().map(|route| route.kind.as_str()).collect();
    let names: Vec<&str> = routes.iter().map(|route| route.name.as_str()).collect();
    let tasks: Vec<&str> = routes.iter().map(|route| route.task.as_str()).collect();
    let ranks: Vec<i16> = from.iter().map(|place| place.rank).collect();
    let dues: Vec<DateTime<Utc>> = from.iter().map(|place| place.due_at).collect();
    let firsts: Vec<i64> = from.iter().map(|place| place.job).collect();

    let mut open_requests: Vec<i32> = Vec::new();
    for (number, ask) in (1i32..).zip(asks) {
        if let Wish::Open { limit, .. } = &ask.wish {
            open_requests.extend(std::iter::repeat_n(number, *limit));
        }
    }
    let open_tokens = grant::tokens(open_requests.len());
    let places = !list.jobs.is_empty() || routes.iter().any(|route| route.kind == JobKind::Container);

    let nothing = Facts::default();
    let facts = match &asks[0].wish {
        Wish::Open { facts: Some(facts), .. } => facts,
        Wish::Open { .. } | Wish::Listed { .. } => &nothing,
    };
    let platform = facts.platform.as_ref();
    let versions = |known: RangeInclusive<u32>| {
        (i32::try_from(*known.start()).unwrap_or(i32::MAX), i32::try_from(*known.end()).unwrap_or(i32::MAX))
    };
    let (languages, executions) = (versions(RecipeSpec::LANGUAGES), versions(RecipeSpec::EXECUTION_VERSIONS));

    let mut races = 0;
    loop {
        let session = desk.pools.session(Lane::Leases, operation).await?;
        let mut ran_before = false;
        let mut lost_race = false;
        let answer = desk
            .pools
            .finish(operation, session, async |session| {
                let answer = session
                    .query(
                        &CLAIM,
                        &[
                            &namespace,
                            &commands,
                            &workers,
                            &processes,
                            &leases,
                            &hashes,
                            &operations,
                            &always,
                            &kinds,
                            &names,
                            &tasks,
                            &ranks,
                            &dues,
                            &firsts,
                            &open_tokens,
                            &open_requests,
                            &list.jobs,
                            &list.generations,
                            &list.attempts,
                            &list.tokens,
                            &list.requests,
                            &places,
                            &languages.0,
                            &languages.1,
                            &executions.0,
                            &executions.1,
                            &facts.cpu_millis,
                            &facts.memory_bytes,
                            &facts.ephemeral_storage_bytes,
                            &platform.map(|(os, ..)| os.as_str()),
                            &platform.map(|(_, architecture, _)| architecture.as_str()),
                            &platform.and_then(|(.., variant)| variant.as_deref()),
                            &facts.image_reference,
                            &facts.image_digest,
                        ],
                    )
                    .await;
                if let Err(e) = &answer {
                    ran_before = error::violates(e, "commands_pkey");
                    lost_race = error::violates(e, "workflow_slots_pkey");
                }
                answer
            })
            .await;
        match answer {
            Err(e) if ran_before => {
                return Err(StoreError { kind: StoreErrorKind::CommandConflict, ..e });
            }
            Err(_) if lost_race && races < RACES => races += 1,
            answer => return answer,
        }
    }
}

/// One row of the statement's answer.
enum Granted {
    To { request: usize, grant: Box<Grant>, place: Place },
    HeldBack { job: i64, blocker: i64 },
}

impl Granted {
    fn read(row: &Row, asks: &[&ClaimAsk]) -> Result<Self, StoreError> {
        let operation = asks[0].operation();
        let garbled = |e| error::garbled(operation, e);
        if let Some(blocker) = row.try_get::<_, Option<i64>>("blocked_by").map_err(garbled)? {
            return Ok(Self::HeldBack { job: row.try_get("job_id").map_err(garbled)?, blocker });
        }
        let number: i32 = row.try_get(0).map_err(garbled)?;
        let request = usize::try_from(number - 1).unwrap_or(usize::MAX);
        let ask = asks.get(request).ok_or_else(|| error::garbled(operation, "a grant for nobody"))?;
        let grant =
            grant::read(row, 1, &ask.owner, ask.lease_ms).map_err(|e| error::garbled(operation, e))?;
        let place = Place {
            rank: row.try_get("rank").map_err(garbled)?,
            due_at: row.try_get("due_at").map_err(garbled)?,
            job: grant.authority.job.0,
        };
        Ok(Self::To { request, grant: Box::new(grant), place })
    }
}
