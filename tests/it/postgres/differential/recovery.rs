//! The steps of recovery: taking over, its repeat, putting off, and a node that is gone meanwhile.

use std::{sync::Arc, time::Duration};

use leasehold::protocol::{
    domain::{CommandId, JobId, JobState, NodeId},
    ports::{Grant, LeaseStore, RecoverAnswer, RecoverRequest},
};
use leasehold_actors::testing::StoreHarness;

use super::{look, pair::Pair};

const LEASE: Duration = Duration::from_mins(10);

fn grants(answer: &RecoverAnswer) -> Vec<Grant> {
    answer.takeovers.iter().map(|takeover| takeover.grant.clone()).collect()
}

impl Pair<'_> {
    pub async fn recover(&mut self) {
        let running = self.jobs_in(JobState::Running);
        let mut here = Vec::new();
        for number in running {
            if self.chance(15) {
                here.push(number);
            }
        }
        let ids = |of: &dyn Fn(usize) -> JobId| -> Arc<[JobId]> { here.iter().map(|n| of(*n)).collect() };
        let owner = self.pick(&self.owners.clone());
        let mine = RecoverRequest {
            owner,
            command: CommandId::generate(),
            repeat: false,
            // All there is: which one comes first is the conformance suite's question.
            limit: 500,
            lease: LEASE,
            running_here: ids(&|number| self.jobs[number].memory),
        };
        let theirs =
            RecoverRequest { running_here: ids(&|number| self.jobs[number].postgres), ..mine.clone() };
        self.note(format!("recover, {here:?} run here"));
        let memory = self.memory.recover(&mine).await.unwrap();
        let postgres = self.store.recover(&theirs).await.unwrap();
        let names = self.names();
        self.same("recovery", look::recovered(&memory, names.0), look::recovered(&postgres, names.1));
        if !memory.takeovers.is_empty() {
            self.recovered.push((mine, theirs));
        }
        self.keep(&grants(&memory), &grants(&postgres));
    }

    pub async fn replay_recovery(&mut self) {
        if self.recovered.is_empty() {
            return;
        }
        let (mine, theirs) = self.pick(&self.recovered.clone());
        self.note(format!("repeat recovery {}", mine.command));
        let repeat = self.chance(70);
        let memory = self.memory.recover(&RecoverRequest { repeat, ..mine }).await.unwrap();
        let postgres = self.store.recover(&RecoverRequest { repeat, ..theirs }).await.unwrap();
        let names = self.names();
        self.same(
            "repeated recovery",
            look::recovered(&memory, names.0),
            look::recovered(&postgres, names.1),
        );
    }

    pub async fn postpone(&mut self) {
        let Some(held) = self.some_authority() else { return };
        self.note(format!("postpone #{} epoch {}", held.number, held.memory.epoch));
        let delay = Duration::from_hours(1);
        let memory = self.memory.port().postpone_recovery(&held.memory, delay).await;
        let postgres = self.store.postpone_recovery(&held.postgres, delay).await;
        self.same_answer("postpone", memory, postgres, |answer| format!("{answer:?}"));
    }

    pub async fn end_postponement(&mut self) {
        for number in self.jobs_in(JobState::Running) {
            self.note(format!("end the postponement of #{number}"));
            self.memory.end_postponement(self.jobs[number].memory).await;
            self.postgres.end_postponement(self.jobs[number].postgres).await;
        }
    }

    /// While it is gone, its jobs are recovered without it; then it is back.
    pub async fn forget_node(&mut self) {
        let node = NodeId::new(self.node_name()).unwrap();
        self.note(format!("forget {node}"));
        self.memory.forget_node(&self.namespace, &node).await;
        self.postgres.forget_node(&self.namespace, &node).await;
        self.recover().await;
        self.register_node().await;
    }
}
