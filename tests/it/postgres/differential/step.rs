//! The steps: each is rolled, told to both stores, and compared.

use std::time::Duration;

use bytes::Bytes;
use chrono::{TimeDelta, Utc};
use leasehold::protocol::{
    domain::{
        CommandId, ContainerId, ContainerSpec, Failure, FailureKind, JobDefinition, JobState, LeaseToken,
        NewJob, NodeId, ProcessId, RetryPolicy, Route,
    },
    ports::{
        Authority, DispatchedJob, End, Ended, LeaseStore, ListedAnswer, ListedClaim, LogBatch, LogStream,
        OpenClaim, PayloadUpdate,
    },
};
use leasehold_actors::testing::{StoreHarness, TestNode, WorkflowChange};
use rand::Rng;

use super::{
    look,
    pair::{Claimed, Held, Pair, WORKFLOWS},
};

const LEASE: Duration = Duration::from_mins(10);

/// The longest back-off that submission takes. Its full jitter hardly ever comes out as "now"; see `put_off`.
const LONG_MS: i64 = 86_400_000;

const DAY: Duration = Duration::from_hours(24);

impl Pair<'_> {
    pub async fn step(&mut self) {
        match self.dice.random_range(0..116) {
            0..16 => self.submit_something().await,
            16..24 => self.claim_open().await,
            24..40 => self.claim_listed().await,
            40..43 => self.replay().await,
            43..48 => self.renew().await,
            48..53 => self.attach().await,
            53..58 => self.append_logs().await,
            58..60 => self.report_progress().await,
            60..76 => self.end().await,
            76..79 => self.repeat_end().await,
            79..84 => self.dispatch().await,
            84..87 => self.expire().await,
            87..91 => self.cancel().await,
            91..94 => self.change_workflow().await,
            94..96 => self.change_node().await,
            96..98 => self.pass_a_deadline().await,
            98..100 => self.reconcile().await,
            100..104 => self.expire().await,
            104..110 => self.recover().await,
            110..112 => self.replay_recovery().await,
            112..114 => self.postpone().await,
            114..115 => self.end_postponement().await,
            _ => self.forget_node().await,
        }
        self.compare().await;
    }

    async fn submit_something(&mut self) {
        let mut workflow = None;
        let mut job = match self.dice.random_range(0..10) {
            0..4 => NewJob::ad_hoc(JobDefinition::Handler { name: "work".to_owned() }),
            4..6 => {
                let spec = ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() };
                NewJob::ad_hoc(JobDefinition::Container(spec))
            }
            _ => {
                let name = self.pick(&WORKFLOWS);
                workflow = Some(name);
                NewJob::of_workflow(self.workflow_name(name))
            }
        };
        job.namespace = self.namespace.clone();
        // Not left out: then the workflow's would be taken, which edits of the harness change.
        job.payload = r#"{"of": "the run"}"#.to_owned();
        job.priority = self.pick(&[0, 0, 0, 5, -5]);
        job.run_at = self.chance(15).then(|| Utc::now() + TimeDelta::days(40_000));
        job.timeout_ms = self.chance(20).then_some(3_600_000);
        if self.chance(50) {
            job.retry.max_user = self.pick(&[None, Some(1), Some(2)]);
            job.retry.max_system = self.pick(&[None, Some(1), Some(2), Some(5)]);
            job.retry.backoff_ms = self.pick(&[Some(0), Some(LONG_MS)]);
            job.retry.backoff_cap_ms = Some(LONG_MS);
        }
        self.note(format!(
            "submit {:?} {:?}",
            job.workflow,
            job.definition.as_ref().map(JobDefinition::kind)
        ));
        self.submit(&job, workflow).await;
    }

    async fn dispatch(&mut self) {
        self.make_due().await;
        self.note("dispatch".to_owned());
        let memory = self.memory.dispatch(&self.namespace, 1000).await;
        let postgres = self.store.dispatch(&self.namespace, 1000).await;
        self.same_answer("dispatch", memory, postgres, |answer| {
            format!("{} next {}", answer.moved, answer.next_due.is_some())
        });
    }

    /// All that is blocked looks again, so that five seconds on two clocks decide nothing; and some that waits.
    async fn make_due(&mut self) {
        for number in self.jobs_in(JobState::Pending) {
            let job = self.jobs[number];
            let view = self.memory.view(&self.namespace, job.memory).unwrap();
            if view.due_at.is_some() && (view.blocked_by.is_some() || self.chance(50)) {
                self.note(format!("make #{number} due"));
                self.memory.make_due(job.memory).await;
                self.postgres.make_due(job.postgres).await;
            }
        }
    }

    async fn claim_open(&mut self) {
        let routes: &[Route] = &self.pick(&[
            vec![Route::handler("work")],
            vec![Route::container()],
            vec![Route::container(), Route::handler("work")],
        ]);
        let request = OpenClaim {
            owner: self.pick(&self.owners.clone()),
            command: CommandId::generate(),
            repeat: false,
            routes: routes.into(),
            // All there is: which one comes first is the conformance suite's question.
            limit: 500,
            lease: LEASE,
            facts: None,
        };
        self.note(format!("claim {routes:?}"));
        let memory = self.memory.claim(&request).await.unwrap().grants;
        let (postgres, requests) = self.claim_all(&request, memory.len()).await;
        let (mine, theirs) = self.names();
        self.same("open claim", look::grants(&memory, mine), look::grants(&postgres, theirs));
        if !memory.is_empty() {
            self.claimed.push(Claimed { memory: request, postgres: requests });
        }
        self.keep(&memory, &postgres);
    }

    async fn claim_listed(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let queued = self.jobs_in(JobState::Queued);
        let mut numbers = Vec::new();
        for _ in 0..self.dice.random_range(1..=3) {
            let any = self.dice.random_range(0..self.jobs.len());
            let number = if queued.is_empty() || self.chance(15) { any } else { self.pick(&queued) };
            // Two runs of one workflow in one claim: who is held back, and who only stays, is left open.
            let flow = self.jobs[number].workflow;
            if !numbers
                .iter()
                .any(|n: &usize| *n == number || flow.is_some() && self.jobs[*n].workflow == flow)
            {
                numbers.push(number);
            }
        }
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for number in &numbers {
            let job = self.jobs[*number];
            let view = self.memory.view(&self.namespace, job.memory).unwrap();
            let generation = view.generation + i64::from(self.chance(7));
            let dispatch_attempt = view.dispatch_attempt + i32::from(self.chance(7));
            mine.push(DispatchedJob { job: job.memory, generation, dispatch_attempt });
            theirs.push(DispatchedJob { job: job.postgres, generation, dispatch_attempt });
        }
        let request = ListedClaim {
            owner: self.pick(&self.owners.clone()),
            command: CommandId::generate(),
            repeat: false,
            jobs: mine,
            lease: LEASE,
        };
        self.note(format!("claim {:?}", numbers));
        let memory = self.memory.claim_listed(&request).await.unwrap();
        let postgres = self.store.claim_listed(&ListedClaim { jobs: theirs, ..request }).await.unwrap();
        let (mine, theirs) = self.names();
        self.same(
            "listed claim",
            memory.iter().map(|answer| look::listed(answer, mine)).collect::<Vec<_>>(),
            postgres.iter().map(|answer| look::listed(answer, theirs)).collect::<Vec<_>>(),
        );
        let granted = |answers: Vec<ListedAnswer>| {
            let grants = answers.into_iter().filter_map(|answer| match answer {
                ListedAnswer::Granted(grant) => Some(*grant),
                ListedAnswer::Rejected(..) => None,
            });
            grants.collect::<Vec<_>>()
        };
        self.keep(&granted(memory), &granted(postgres));
    }

    async fn replay(&mut self) {
        if self.claimed.is_empty() {
            return;
        }
        let claimed = self.pick(&self.claimed.clone());
        self.note(format!("repeat claim {}", claimed.memory.command));
        let repeat = |request: &OpenClaim| OpenClaim { repeat: true, ..request.clone() };
        let memory = self.memory.claim(&repeat(&claimed.memory)).await.unwrap().grants;
        let mut postgres = Vec::new();
        for request in &claimed.postgres {
            postgres.extend(self.store.claim(&repeat(request)).await.unwrap().grants);
        }
        let (mine, theirs) = self.names();
        self.same("replay", look::grants(&memory, mine), look::grants(&postgres, theirs));
    }

    /// A grant from any time, mostly as it was, sometimes with one thing wrong; preferably a late one.
    pub(super) fn some_authority(&mut self) -> Option<Held> {
        if self.held.is_empty() {
            return None;
        }
        let recent = self.held.len().saturating_sub(8);
        let from = if self.chance(80) { recent } else { 0 };
        let lately = self.held[from..].to_vec();
        let mut held = self.pick(&lately);
        let wrong = self.dice.random_range(0..20);
        let change = |authority: &mut Authority| match wrong {
            0 => authority.token = LeaseToken::generate(),
            1 => authority.owner.process = ProcessId::generate(),
            2 => authority.owner.worker = "somebody-else".parse().unwrap(),
            _ => {}
        };
        change(&mut held.memory);
        change(&mut held.postgres);
        if wrong < 3 {
            self.note(format!("(with wrong {wrong})"));
        }
        Some(held)
    }

    async fn renew(&mut self) {
        let Some(held) = self.some_authority() else { return };
        self.note(format!("renew #{} epoch {}", held.number, held.memory.epoch));
        let (memory, postgres) =
            (self.memory.renew(&held.memory).await, self.store.renew(&held.postgres).await);
        self.same_answer("renew", memory, postgres, |answer| look::renewal(*answer));
    }

    async fn attach(&mut self) {
        let Some(held) = self.some_authority() else { return };
        let container = ContainerId::new(self.pick(&["c1", "c1", "c2"])).unwrap();
        let elsewhere = NodeId::new("elsewhere").unwrap();
        let (mine, theirs) = match &held.node {
            Some(node) if !self.chance(10) => node.clone(),
            _ => (elsewhere.clone(), elsewhere),
        };
        self.note(format!("attach {container} to #{} on {mine}", held.number));
        let memory = self.memory.attach(&held.memory, &mine, &container).await;
        let postgres = self.store.attach(&held.postgres, &theirs, &container).await;
        self.same_answer("attach", memory, postgres, look::attach);
    }

    async fn append_logs(&mut self) {
        let Some(held) = self.some_authority() else { return };
        let batches: Vec<LogBatch> = (0..self.dice.random_range(0..3))
            .map(|_| LogBatch {
                task: None,
                stream: self.pick(&[LogStream::Stdout, LogStream::Stderr]),
                first_byte: self.dice.random_range(0..3),
                data: Bytes::from(vec![self.dice.random::<u8>(); 3]),
            })
            .collect();
        self.note(format!("append {batches:?} to #{}", held.number));
        let memory = self.memory.append_logs(&held.memory, &batches).await;
        let postgres = self.store.append_logs(&held.postgres, &batches).await;
        self.same_answer("append", memory, postgres, |answer| look::append(*answer));
    }

    async fn report_progress(&mut self) {
        let Some(held) = self.some_authority() else { return };
        let note = self.pick(&[r#"{"done": 1}"#, "2", "no json", "null"]);
        self.note(format!("progress {note} of #{}", held.number));
        let memory = self.memory.report_progress(&held.memory, note).await;
        let postgres = self.store.report_progress(&held.postgres, note).await;
        self.same_answer("progress", memory, postgres, |answer| look::renewal(*answer));
    }

    async fn end(&mut self) {
        let Some(held) = self.some_authority() else { return };
        let end = self.some_end();
        let command = CommandId::generate();
        self.end_both(held, command, end).await;
    }

    async fn repeat_end(&mut self) {
        if self.ends.is_empty() {
            return;
        }
        let (held, command, end) = self.pick(&self.ends.clone());
        self.end_both(held, command, end).await;
    }

    async fn end_both(&mut self, held: Held, command: CommandId, end: End) {
        self.note(format!("end #{} epoch {} by {command} {end:?}", held.number, held.memory.epoch));
        let memory = self.memory.end(&held.memory, command, &end).await;
        let postgres = self.store.end(&held.postgres, command, &end).await;
        let retrying = matches!(memory, Ok(Ended::Retrying { .. }));
        self.same_answer("end", memory, postgres, look::ended);
        if retrying {
            self.put_off(held.number).await;
        }
        self.ends.push((held, command, end));
    }

    /// Two dice rolled how long a try waits. Where it waits at all, it waits for a day in both stores.
    async fn put_off(&mut self, number: usize) {
        let job = self.jobs[number];
        let view = self.memory.view(&self.namespace, job.memory).unwrap();
        if view.state == JobState::Pending && view.due_at.is_some_and(|at| at > self.memory.clock()) {
            self.memory.put_off(job.memory, DAY);
            self.postgres.put_off(job.postgres, DAY).await;
        }
    }

    fn some_end(&mut self) -> End {
        let delay = Duration::from_secs(self.pick(&[0, 0, 3600]));
        match self.dice.random_range(0..10) {
            0 | 1 => End::Complete {
                exit_code: self.pick(&[None, Some(0)]),
                output: self.pick(&[None, Some(r#"{"b": 1.50}"#.to_owned())]),
            },
            2..5 => {
                let kind = self.pick(&[FailureKind::User, FailureKind::System, FailureKind::Timeout]);
                let failure = Failure::new(kind, self.pick(&["3", "oom"]), "why");
                let defaults = RetryPolicy {
                    max_system: self.pick(&[None, Some(1), Some(2)]),
                    max_timeout: self.pick(&[None, Some(2)]),
                    backoff_ms: self.pick(&[Some(0), Some(LONG_MS)]),
                    backoff_cap_ms: Some(LONG_MS),
                    ..RetryPolicy::default()
                };
                let failure = if self.chance(50) { failure.with_exit_code(3) } else { failure };
                End::Fail { failure, defaults }
            }
            5 => End::Cancel,
            8.. => End::Lost {
                defaults: RetryPolicy {
                    max_system: self.pick(&[None, Some(1), Some(2), Some(10)]),
                    backoff_ms: self.pick(&[Some(0), Some(LONG_MS)]),
                    backoff_cap_ms: Some(LONG_MS),
                    ..RetryPolicy::default()
                },
                loss_limit: self.pick(&[1, 2, 10]),
                message: "nobody was there".to_owned(),
            },
            6 => End::Release { delay, reason: "drain" },
            _ => End::Reschedule {
                route: None,
                delay,
                payload: self.chance(50).then(|| PayloadUpdate {
                    value: r#"{"a":  1}"#.to_owned(),
                    expected_revision: self.dice.random_range(1..3),
                }),
                wake: Vec::new(),
                publish: None,
            },
        }
    }

    async fn reconcile(&mut self) {
        let Some(held) = self.some_authority() else { return };
        self.note(format!("reconcile #{}", held.number));
        let memory = self.memory.reconcile(&held.memory).await;
        let postgres = self.store.reconcile(&held.postgres).await;
        self.same_answer("reconcile", memory, postgres, |answer| look::reconciled(*answer).to_owned());
    }

    async fn expire(&mut self) {
        let now = self.memory.clock();
        let mut live = self.jobs_in(JobState::Running);
        live.retain(|number| {
            let view = self.memory.view(&self.namespace, self.jobs[*number].memory);
            view.and_then(|view| view.lease_expires_at).is_some_and(|at| at > now)
        });
        if live.is_empty() {
            return;
        }
        let number = self.pick(&live);
        let job = self.jobs[number];
        if self.chance(20) {
            self.note(format!("expire #{number} over a restart"));
            self.memory.expire_over_a_restart(job.memory).await;
            self.postgres.expire_over_a_restart(job.postgres).await;
        } else {
            self.note(format!("expire #{number}"));
            self.memory.expire(job.memory).await;
            self.postgres.expire(job.postgres).await;
        }
    }

    async fn pass_a_deadline(&mut self) {
        let running = self.jobs_in(JobState::Running);
        if running.is_empty() {
            return;
        }
        let number = self.pick(&running);
        let job = self.jobs[number];
        let view = self.memory.view(&self.namespace, job.memory).unwrap();
        // Only a request sets a cancel deadline.
        if !view.cancel_requested || self.chance(50) {
            self.note(format!("pass the run deadline of #{number}"));
            self.memory.pass_run_deadline(job.memory).await;
            self.postgres.pass_run_deadline(job.postgres).await;
        } else {
            self.note(format!("pass the cancel deadline of #{number}"));
            self.memory.pass_cancel_deadline(job.memory).await;
            self.postgres.pass_cancel_deadline(job.postgres).await;
        }
    }

    async fn cancel(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let number = self.dice.random_range(0..self.jobs.len());
        let job = self.jobs[number];
        let grace = Duration::from_secs(self.dice.random_range(0..100));
        self.note(format!("cancel #{number}"));
        let memory = self.memory.request_cancel(&self.namespace, job.memory, grace).await;
        let postgres = self.postgres.request_cancel(&self.namespace, job.postgres, grace).await;
        self.same("cancel", memory, postgres);
    }

    async fn change_workflow(&mut self) {
        let name = self.pick(&WORKFLOWS);
        let name = self.workflow_name(name);
        let change = self.pick(&[
            WorkflowChange::Edit,
            WorkflowChange::Edit,
            WorkflowChange::Edit,
            WorkflowChange::Pause,
            WorkflowChange::Pause,
            WorkflowChange::Resume,
            WorkflowChange::Resume,
            WorkflowChange::Resume,
            WorkflowChange::Terminate,
        ]);
        // No change is taken after the last one.
        if self.terminated.contains(&name) {
            return;
        }
        if change == WorkflowChange::Terminate {
            self.terminated.push(name.clone());
        }
        self.note(format!("{change:?} {name}"));
        self.memory.change_workflow(&self.namespace, &name, change).await;
        self.postgres.change_workflow(&self.namespace, &name, change).await;
    }

    async fn change_node(&mut self) {
        let name = self.node_name();
        let node = NodeId::new(name.clone()).unwrap();
        match self.dice.random_range(0..6) {
            4 => {
                self.note(format!("lose {name}"));
                self.memory.lose_node(&self.namespace, &node).await;
                self.postgres.lose_node(&self.namespace, &node).await;
            }
            5 => {
                self.note(format!("sicken {name}"));
                self.memory.sicken_node(&self.namespace, &node).await;
                self.postgres.sicken_node(&self.namespace, &node).await;
            }
            0 => {
                self.note(format!("drain {name}"));
                self.memory.drain_node(&self.namespace, &node).await;
                self.postgres.drain_node(&self.namespace, &node).await;
            }
            1 => {
                self.note(format!("silence {name}"));
                self.memory.silence_node(&self.namespace, &node).await;
                self.postgres.silence_node(&self.namespace, &node).await;
            }
            _ => {
                self.register_node().await;
            }
        }
    }

    pub(super) async fn register_node(&mut self) {
        let name = self.node_name();
        let mut node = TestNode::new(&self.namespace, &name, self.dice.random_range(1..4));
        if self.chance(25) {
            node.engine_id = "another".to_owned();
        }
        self.note(format!("register {name} with {} slots at {}", node.max_concurrency, node.engine_id));
        self.memory.register_node(&node).await;
        self.postgres.register_node(&node).await;
    }
}
