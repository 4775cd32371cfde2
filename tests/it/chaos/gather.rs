//! Looks at the fleet while it runs (slots, permits, containers), and reads the database at the end.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use bollard::query_parameters::ListContainersOptionsBuilder;
use tokio::time::Instant;
use tokio_postgres::{Client, Row};

use super::{
    fleet::{Member, Role, SLOTS},
    history::{EndEvent, EndOp, History, Holder, LeaseEvent, Past, PermitSample, SECOND, Seen, SlotSample},
    ledger::now,
    report::Report,
    world::World,
};
use crate::support::eventually::pass;

/// Watches until it is finished.
pub struct Watch {
    world: Arc<World>,
    found: Arc<Mutex<Found>>,
    tasks: Vec<tokio::task::AbortHandle>,
}

#[derive(Default)]
struct Found {
    slots: Vec<SlotSample>,
    permits: Vec<PermitSample>,
    containers: BTreeMap<String, Seen>,
}

impl Watch {
    pub fn start(world: Arc<World>) -> Self {
        let found: Arc<Mutex<Found>> = Arc::default();
        let mut tasks = Vec::new();
        tasks.push(tokio::spawn(look_at_database(Arc::clone(&world), Arc::clone(&found))).abort_handle());
        for engine in 0..world.engines.len() {
            let looking = look_at_engine(Arc::clone(&world), engine, Arc::clone(&found));
            tasks.push(tokio::spawn(looking).abort_handle());
        }
        Self { world, found, tasks }
    }

    /// Takes what was seen, once more when all is at rest.
    pub async fn finish(self, history: &mut History, members: &[Member]) {
        let workers: Vec<&str> = members
            .iter()
            .filter(|member| member.role != Role::Node)
            .map(|member| member.name.as_str())
            .collect();
        let quiet = now();
        let begun = Instant::now();
        let mut last = Vec::new();
        // Each worker writes its row every ten seconds.
        while begun.elapsed() < Duration::from_secs(45) {
            if let Some(client) = self.world.session().await {
                last = permits(&client).await.unwrap_or_default();
                last.retain(|sample| sample.at > quiet);
                let free = |name: &&str| last.iter().any(|s| s.worker == *name && s.states[5] == s.capacity);
                if workers.iter().all(free) {
                    break;
                }
            }
            pass(Duration::from_millis(300)).await;
        }
        for task in &self.tasks {
            task.abort();
        }
        let mut found = self.found.lock().unwrap();
        found.permits.extend(last.into_iter().map(|sample| PermitSample { last: true, ..sample }));
        history.permits = std::mem::take(&mut found.permits);
        history.slots = std::mem::take(&mut found.slots);
        history.containers = std::mem::take(&mut found.containers).into_values().collect();
        history.limits.slots_per_node = SLOTS;
        // Orphan interval 5 s, stop grace 1 s, 10 s.
        history.limits.leftover = 16 * SECOND;
    }
}

async fn look_at_database(world: Arc<World>, found: Arc<Mutex<Found>>) {
    let mut known: BTreeMap<String, i64> = BTreeMap::new();
    loop {
        if let Some(client) = world.session().await {
            while let Ok(Ok(slots)) = tokio::time::timeout(Duration::from_secs(2), slots(&client)).await {
                found.lock().unwrap().slots.push(slots);
                for sample in permits(&client).await.unwrap_or_default() {
                    if known.insert(sample.worker.clone(), sample.at) != Some(sample.at) {
                        found.lock().unwrap().permits.push(sample);
                    }
                }
                pass(Duration::from_millis(250)).await;
            }
        }
        pass(Duration::from_millis(250)).await;
    }
}

async fn slots(client: &Client) -> Result<SlotSample, tokio_postgres::Error> {
    // One statement: one snapshot.
    let sql = "select true, node_id, job_id from leasehold.node_slots
               union all select false, node_id, job_id from leasehold.leases where node_id is not null";
    let mut sample = SlotSample { at: now(), slots: Vec::new(), running: Vec::new() };
    for row in client.query(sql, &[]).await? {
        let of = if row.get(0) { &mut sample.slots } else { &mut sample.running };
        of.push((row.get(1), row.get(2)));
    }
    Ok(sample)
}

/// What the youngest process of each worker last wrote of its permits.
async fn permits(client: &Client) -> Result<Vec<PermitSample>, tokio_postgres::Error> {
    let sql = "select distinct on (worker_id) worker_id, concurrency, chaos.micros(seen_at), status::text
               from leasehold.workers order by worker_id, started_at desc";
    let samples = client.query(sql, &[]).await?.into_iter().map(|row| {
        let status: serde_json::Value = serde_json::from_str(row.get(3)).unwrap();
        let states = ["reserved", "active", "awaiting_replay", "awaiting_reconciliation", "stuck", "free"]
            .map(|state| status["permits"][state].as_u64().unwrap() as u32);
        PermitSample {
            at: row.get(2),
            worker: row.get(0),
            capacity: row.get::<_, i32>(1) as u32,
            states,
            last: false,
        }
    });
    Ok(samples.collect())
}

async fn look_at_engine(world: Arc<World>, number: usize, found: Arc<Mutex<Found>>) {
    let engine = &world.engines[number];
    loop {
        for container in list(&world, number).await.unwrap_or_default() {
            let labels = container.labels.unwrap_or_default();
            let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
            let id = container.id.unwrap_or_default();
            let seen = Seen {
                engine: engine.node.clone(),
                id: id.clone(),
                node: label("leasehold.node"),
                job: label("leasehold.job").parse().unwrap_or(0),
                epoch: label("leasehold.epoch").parse().unwrap_or(0),
                last_seen: now(),
            };
            found.lock().unwrap().containers.insert(id, seen);
        }
        pass(Duration::from_millis(400)).await;
    }
}

/// The fleet's containers on an engine, by way of its own socket.
async fn list(world: &World, number: usize) -> Option<Vec<bollard::models::ContainerSummary>> {
    let socket = world.engines[number].socket.to_str()?;
    let docker = bollard::Docker::connect_with_unix(socket, 5, bollard::API_DEFAULT_VERSION).ok()?;
    let label = format!("leasehold.fleet={}", world.fleet);
    let filters = std::collections::HashMap::from([("label".to_owned(), vec![label])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    tokio::time::timeout(Duration::from_secs(5), docker.list_containers(Some(options))).await.ok()?.ok()
}

/// Waits until no engine has a container of the fleet, and returns those that stay.
pub async fn await_no_containers(world: &World) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let mut left = Vec::new();
        for number in 0..world.engines.len() {
            match list(world, number).await {
                None => left.push(format!("engine {number} does not answer")),
                Some(found) => left.extend(found.into_iter().map(|container| {
                    let names = container.names.unwrap_or_default().join(" ");
                    format!("{names} on engine {}: {}", number + 1, container.status.unwrap_or_default())
                })),
            }
        }
        if left.is_empty() || begun.elapsed() > Duration::from_secs(60) {
            return left;
        }
        pass(Duration::from_millis(500)).await;
    }
}

/// Reads what the database recorded of changes, and where everything stands.
pub async fn read_database(world: &World, history: &mut History) {
    let client = world.session().await.expect("the server runs at the end");
    let rows = |sql: &'static str| async { client.query(sql, &[]).await.unwrap() };
    let holder = |row: &Row, first: usize| {
        Some(Holder {
            epoch: row.get::<_, Option<i64>>(first)?,
            token: row.get(first + 1),
            owner: row.get(first + 2),
            expires: row.get(first + 3),
        })
    };
    let sql = "select at, job_id, old_epoch, old_token, old_owner, old_expires, new_epoch, new_token, new_owner, new_expires,
                      claim_epoch, lease_ms, cancel, postponed, node_id, container_id, member
               from chaos.leases_seen order by seq";
    history.leases = rows(sql)
        .await
        .iter()
        .map(|row| LeaseEvent {
            at: row.get(0),
            job: row.get(1),
            before: holder(row, 2),
            after: holder(row, 6),
            claim_epoch: row.get(10),
            lease: i64::from(row.get::<_, i32>(11)) * 1000,
            cancel: row.get(12),
            postponed: row.get(13),
            node: row.get(14),
            container: row.get(15),
            member: row.get(16),
        })
        .collect();
    let sql =
        "select at, job_id, op, state, code, epoch, attempt, failures from chaos.ends_seen order by seq";
    let ends = rows(sql).await;
    history.ends = ends
        .iter()
        .map(|row| EndEvent {
            at: row.get(0),
            job: row.get(1),
            op: match row.get(2) {
                "INSERT" => EndOp::Came,
                "UPDATE" => EndOp::Changed,
                _ => EndOp::Left,
            },
            state: row.get(3),
            code: row.get(4),
            epoch: row.get(5),
            attempt: row.get(6),
            failures: row.get::<_, Vec<i32>>(7).try_into().unwrap(),
        })
        .collect();
    let sql = "select job_id, epoch, how::text, worker_id || '/' || process_id, chaos.micros(granted_at), chaos.micros(ended_at),
                      attempt, failure_kind::text, failure_code
               from leasehold.lease_history order by job_id, epoch";
    history.past = rows(sql)
        .await
        .iter()
        .map(|row| Past {
            job: row.get(0),
            epoch: row.get(1),
            how: row.get(2),
            owner: row.get(3),
            granted: row.get(4),
            ended: row.get(5),
            attempt: row.get(6),
            kind: row.get(7),
            code: row.get(8),
        })
        .collect();
    let sql = "select job_id, 'waiting' from leasehold.waiting union all select job_id, 'ready' from leasehold.ready
               union all select job_id, 'leases' from leasehold.leases union all select job_id, 'ended' from leasehold.ended";
    history.standing = rows(sql).await.iter().map(|row| (row.get(0), row.get(1))).collect();
}

/// Where the logs of the processes are; those of a run without a fault are not kept.
pub fn keep_logs(report: &Report, members: &[Member]) -> Option<PathBuf> {
    if report.is_clean() {
        return None;
    }
    let folder = std::env::temp_dir().join(format!("leasehold-chaos-logs-{}", report.seed()));
    std::fs::create_dir_all(&folder).ok()?;
    for member in members {
        let _ = std::fs::copy(member.log(), folder.join(member.log().file_name()?));
    }
    Some(folder)
}
