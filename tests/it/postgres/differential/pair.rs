//! Two stores that are told the same, and compared after every step.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::Utc;
use leasehold::protocol::{
    domain::{CommandId, JobDefinition, JobId, JobState, Namespace, NewJob, NodeId, ProcessId, WorkerId},
    error::StoreError,
    ports::{Authority, Claimant, Grant, LeaseStore, OpenClaim, RecoverRequest},
};
use leasehold_actors::testing::{MemoryStore, StoreHarness, TestNode, TestWorkflow};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    super::harness::PgHarness,
    look::{self, Names},
};

/// How long PostgreSQL may look past a job that is below the mark of its last claim.
const MARK_LAG: Duration = Duration::from_secs(5);

/// The workflows of every seed, by what is special about them.
pub const WORKFLOWS: [&str; 3] = ["plain", "two-at-once", "serial"];

/// One job in both stores.
#[derive(Debug, Clone, Copy)]
pub struct Twin {
    pub memory: JobId,
    pub postgres: JobId,
    pub workflow: Option<&'static str>,
}

/// One grant in both stores: what an authority is made of.
#[derive(Debug, Clone)]
pub struct Held {
    pub number: usize,
    pub memory: Authority,
    pub postgres: Authority,
    pub node: Option<(NodeId, NodeId)>,
}

/// An open claim that granted something: in PostgreSQL perhaps with more than one question.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub memory: OpenClaim,
    pub postgres: Vec<OpenClaim>,
}

pub struct Pair<'a> {
    pub dice: StdRng,
    pub memory: MemoryStore,
    pub postgres: &'a PgHarness,
    pub store: Arc<dyn LeaseStore>,
    pub namespace: Namespace,
    pub owners: Vec<Claimant>,
    pub jobs: Vec<Twin>,
    pub held: Vec<Held>,
    pub claimed: Vec<Claimed>,
    /// Recoveries that took something over.
    pub recovered: Vec<(RecoverRequest, RecoverRequest)>,
    pub terminated: Vec<String>,
    /// Ends that were sent, for their repeats.
    pub ends: Vec<(Held, CommandId, leasehold::protocol::ports::End)>,
    names: (Names, Names),
    seed: u64,
    steps: Vec<String>,
}

impl<'a> Pair<'a> {
    pub async fn new(postgres: &'a PgHarness, seed: u64) -> Self {
        let namespace = Namespace::new(format!("seed-{seed}")).unwrap();
        let owner = |name: &str| Claimant {
            namespace: namespace.clone(),
            worker: WorkerId::new(name).unwrap(),
            process: ProcessId::generate(),
        };
        let pair = Self {
            dice: StdRng::seed_from_u64(seed),
            memory: MemoryStore::new(),
            postgres,
            store: postgres.store(),
            owners: ["w-1", "w-2", "w-2"].map(owner).to_vec(),
            namespace,
            jobs: Vec::new(),
            held: Vec::new(),
            claimed: Vec::new(),
            recovered: Vec::new(),
            terminated: Vec::new(),
            ends: Vec::new(),
            names: Default::default(),
            seed,
            steps: Vec::new(),
        };
        pair.furnish().await;
        pair
    }

    /// A node and workflows, the same in both.
    async fn furnish(&self) {
        let node = TestNode::new(&self.namespace, &self.node_name(), 2);
        self.memory.register_node(&node).await;
        self.postgres.register_node(&node).await;
        for name in WORKFLOWS {
            // A route of their own: an open claim may pass a blocked job by for a moment, a listed one never.
            let definition = JobDefinition::Handler { name: "flow".to_owned() };
            let mut workflow = TestWorkflow::new(&self.namespace, &self.workflow_name(name), definition);
            workflow.overlap_limit = (name == "two-at-once").then_some(2);
            workflow.overlap_serial = name == "serial";
            workflow.retry.backoff_ms = Some(0);
            self.memory.define_workflow(&workflow).await;
            self.postgres.define_workflow(&workflow).await;
        }
    }

    /// One node: which of several gets a job is decided by chance, and what is left on each depends on it.
    pub fn node_name(&self) -> String {
        format!("n-{}", self.seed)
    }

    /// The harness knows workflows by name only, so each seed has its own names.
    pub fn workflow_name(&self, name: &str) -> String {
        format!("{name}-{}", self.seed)
    }

    pub async fn submit(&mut self, job: &NewJob, workflow: Option<&'static str>) {
        // Both may refuse a run of a workflow that is terminated; the harnesses would panic.
        let memory = self.memory.submit_job(job).map(|submitted| submitted.job).ok();
        let postgres = self.postgres.try_submit(job).await;
        match (memory, postgres) {
            (Some(memory), Some(postgres)) => {
                self.names.0.add(memory);
                self.names.1.add(postgres);
                self.jobs.push(Twin { memory, postgres, workflow });
            }
            (memory, postgres) => self.same("submit", memory.is_some(), postgres.is_some()),
        }
    }

    // -- picking --------------------------------------------------------------------------------------

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.dice.random_range(0..from.len())].clone()
    }

    pub fn chance(&mut self, of_hundred: u32) -> bool {
        self.dice.random_range(0..100) < of_hundred
    }

    /// The jobs that the memory store sees in a state.
    pub fn jobs_in(&self, state: JobState) -> Vec<usize> {
        let in_state = |job: &Twin| {
            self.memory.view(&self.namespace, job.memory).is_some_and(|view| view.state == state)
        };
        (0..self.jobs.len()).filter(|number| in_state(&self.jobs[*number])).collect()
    }

    // -- what is remembered -----------------------------------------------------------------------------

    pub fn names(&self) -> (&Names, &Names) {
        (&self.names.0, &self.names.1)
    }

    /// Remembers grants that both stores made, matched by job.
    pub fn keep(&mut self, memory: &[Grant], postgres: &[Grant]) {
        for mine in memory {
            let number = self.jobs.iter().position(|job| job.memory == mine.authority.job).unwrap();
            let theirs =
                postgres.iter().find(|theirs| theirs.authority.job == self.jobs[number].postgres).unwrap();
            let node = mine.placement.as_ref().zip(theirs.placement.as_ref());
            self.held.push(Held {
                number,
                memory: mine.authority.clone(),
                postgres: theirs.authority.clone(),
                node: node.map(|(mine, theirs)| (mine.node.clone(), theirs.node.clone())),
            });
        }
    }

    pub fn note(&mut self, step: String) {
        self.steps.push(step);
    }

    /// An open claim on PostgreSQL until it has granted as many, or has had the time that a mark may cost.
    pub async fn claim_all(&self, request: &OpenClaim, wanted: usize) -> (Vec<Grant>, Vec<OpenClaim>) {
        let started = Instant::now();
        let (mut grants, mut requests) = (Vec::new(), Vec::new());
        let mut request = request.clone();
        loop {
            let more = self.store.claim(&request).await.unwrap().grants;
            if !more.is_empty() {
                requests.push(request.clone());
                grants.extend(more);
            }
            if grants.len() >= wanted || started.elapsed() > MARK_LAG {
                return (grants, requests);
            }
            request.command = CommandId::generate();
        }
    }

    // -- comparing --------------------------------------------------------------------------------------

    #[track_caller]
    pub fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, memory: T, postgres: T) {
        if memory != postgres {
            let steps = self.steps.join("\n  ");
            panic!(
                "seed {}: {what} differs\n    memory: {memory:#?}\n  postgres: {postgres:#?}\nafter\n  {steps}",
                self.seed
            );
        }
    }

    #[track_caller]
    pub fn same_answer<T>(
        &self,
        what: &str,
        memory: Result<T, StoreError>,
        postgres: Result<T, StoreError>,
        show: impl Fn(&T) -> String,
    ) {
        let show = |answer: Result<T, StoreError>| match answer {
            Ok(answer) => show(&answer),
            Err(error) => format!("{:?} {:?}", error.kind, error.applied),
        };
        self.same(what, show(memory), show(postgres));
    }

    /// Every job's row.
    pub async fn compare(&self) {
        let now = Utc::now();
        let theirs = self.postgres.jobs(&self.namespace).await;
        for (number, job) in self.jobs.iter().enumerate() {
            let memory = self.memory.view(&self.namespace, job.memory).expect("both have the job");
            let postgres = theirs.get(&job.postgres).expect("both have the job");
            // The memory store's clock has an epoch of its own.
            let memory_now = self.memory.clock();
            self.same(
                &format!("job #{number}"),
                look::job(&memory, &self.names.0, memory_now),
                look::job(postgres, &self.names.1, now),
            );
        }
    }

    /// Histories, output and slots, which only grow or follow: compared once.
    pub async fn conclude(&self) {
        for (number, job) in self.jobs.iter().enumerate() {
            let shown = |history: Vec<leasehold_actors::testing::HistoryView>| -> Vec<String> {
                history.iter().map(look::past).collect()
            };
            let memory = shown(self.memory.history(job.memory).await);
            let postgres = shown(self.postgres.history(job.postgres).await);
            self.same(&format!("history of #{number}"), memory, postgres);
            let memory = self.memory.logs(job.memory).await;
            self.same(&format!("output of #{number}"), memory, self.postgres.logs(job.postgres).await);
            let memory = self.memory.progress_note(job.memory).await;
            self.same(&format!("note of #{number}"), memory, self.postgres.progress_note(job.postgres).await);
        }
        let node = NodeId::new(self.node_name()).unwrap();
        let memory = self.memory.node_slots(&self.namespace, &node).await;
        let postgres = self.postgres.node_slots(&self.namespace, &node).await;
        self.same("jobs on nodes", named(&memory, &self.names.0), named(&postgres, &self.names.1));
        for name in WORKFLOWS {
            let name = self.workflow_name(name);
            let memory = self.memory.workflow_slots(&self.namespace, &name).await;
            let postgres = self.postgres.workflow_slots(&self.namespace, &name).await;
            self.same(&name, named(&memory, &self.names.0), named(&postgres, &self.names.1));
        }
    }
}

/// Which jobs hold slots; which slot is each store's own affair.
fn named(slots: &[(i32, JobId)], names: &Names) -> Vec<String> {
    let mut jobs: Vec<String> = slots.iter().map(|(_, job)| names.of(*job)).collect();
    jobs.sort_unstable();
    jobs
}
