//! What all nodes have in common: `when`, needs, `retry`, `timeout`, `catch`.

use std::{future::poll_fn, task::Poll, time::Duration};

use futures_util::future::BoxFuture;
use leasehold_actors::{
    domain::{Failure, FailureKind},
    ports::recipe::JsonText,
};

use super::{
    Session,
    env::{Env, Scopes, null},
    failure::{Fatal, Fault, NodeFailure},
    lock,
    path::Path,
    strand::Strand,
};
use crate::recipe::{
    compiled::{Body, Node, Retry},
    op::TaskStop,
};

/// Where a walk is, and what it knows there.
#[derive(Debug, Clone)]
pub(super) struct Place<'a> {
    pub(super) path: Path,
    pub(super) env: Env,
    pub(super) scopes: Scopes<'a>,
    /// The ordinal of the latest record that led here.
    pub(super) since: i64,
}

/// A node has its output.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) output: JsonText,
    /// The ordinal of the latest record that it follows from.
    pub(super) since: i64,
    /// What later nodes read.
    pub(super) env: Env,
}

pub(super) type Walked = Result<Done, NodeFailure>;

impl Session {
    /// Walks one node.
    pub(super) fn node<'a>(
        &'a self,
        node: &'a Node,
        mut at: Place<'a>,
        strand: &'a mut Strand,
    ) -> BoxFuture<'a, Walked> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let outside = at.env.clone();
            match node.when.as_ref().map_or(Ok(true), |when| when.holds(&at.env)) {
                Ok(true) => {}
                Ok(false) => {
                    let mut env = at.env;
                    env.put(node.number, null());
                    return Ok(Done { output: null(), since: at.since, env });
                }
                Err(error) => {
                    let fault = Fault::of_template(&error);
                    return Err(self.fault(fault, at.path.as_str(), at.since, strand).await);
                }
            }
            at.scopes = at.scopes.inside(&node.needs, &at.env);
            let walked = match (self.attempts(node, &at, strand).await, &node.catch) {
                (Err(failed), Some(catch)) => {
                    let inside = Place {
                        path: at.path.child(&catch.id),
                        env: at.env.with_error(failed.to_json()),
                        since: failed.at,
                        scopes: at.scopes,
                    };
                    self.node(catch, inside, strand).await
                }
                (walked, _) => walked,
            };
            walked.map(|mut done| {
                done.env.error_of(&outside);
                done.env.put(node.number, done.output.clone());
                done
            })
        })
    }

    async fn attempts<'a>(&'a self, node: &'a Node, at: &Place<'a>, strand: &'a mut Strand) -> Walked {
        let Some(retry) = &node.retry else { return self.attempt(node, at.clone(), 1, strand).await };
        let mut since = at.since;
        let mut number = 1;
        loop {
            let here = Place { path: at.path.attempt(number), since, ..at.clone() };
            let failed = match self.attempt(node, here.clone(), number, strand).await {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            if number >= retry.max_attempts || !is_retried(retry, &failed.failure) {
                return Err(failed);
            }
            since = failed.at;
            let wait = backoff(retry, number);
            if !wait.is_zero() {
                since = self.timer(&here.path.backoff(), wait, &here.scopes, strand).await.max(since);
            }
            number += 1;
        }
    }

    fn attempt<'a>(
        &'a self,
        node: &'a Node,
        at: Place<'a>,
        number: u32,
        strand: &'a mut Strand,
    ) -> BoxFuture<'a, Walked> {
        Box::pin(async move {
            match node.timeout {
                None => self.body(node, at, number, strand).await,
                Some(limit) => self.within(limit, node, at, number, strand).await,
            }
        })
    }

    /// Walks an attempt beside the timer of its timeout. Of the two the lower ordinal wins, in a replay too.
    async fn within<'a>(
        &'a self,
        limit: Duration,
        node: &'a Node,
        mut at: Place<'a>,
        number: u32,
        strand: &'a mut Strand,
    ) -> Walked {
        let (name, path) = (at.path.timeout(), at.path.to_string());
        let set = self.set_timer(&name, limit, strand).await;
        let stands = lock(&self.log).visit(&name);
        at.since = at.since.max(stands.timer_first_set.unwrap_or(set.ordinal));
        let mut fired = stands.timer_fired.map(|event| event.ordinal);

        let group = strand.group.inside();
        let mut inside = Strand::new(&group);
        let mut body = Box::pin(async move { self.body(node, at, number, &mut inside).await });
        let mut beside = Strand::resting(&strand.group);
        let mut timer = Box::pin(async {
            let set = self.set_anew(&name, set, limit, &mut beside).await;
            self.fire(&name, &set, None, &mut beside).await
        });
        strand.rest();
        let walked = poll_fn(|cx| {
            loop {
                if let Poll::Ready(walked) = body.as_mut().poll(cx) {
                    return Poll::Ready(Some(walked));
                }
                if fired.is_some() {
                    // Its tasks were told, or never ran; what is in the middle of its record comes to its end.
                    return if group.rests() { Poll::Ready(None) } else { Poll::Pending };
                }
                match timer.as_mut().poll(cx) {
                    Poll::Ready(ordinal) => {
                        fired = Some(ordinal);
                        group.stop(TaskStop::TimedOut);
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        strand.resume();
        let first = |walked: &Walked| match walked {
            Ok(done) => done.since,
            Err(failed) => failed.at,
        };
        match (walked, fired) {
            (Some(walked), None) => walked,
            (Some(walked), Some(fired)) if first(&walked) < fired => walked,
            (_, fired) => Err(NodeFailure {
                failure: Failure::new(
                    FailureKind::Timeout,
                    "timeout",
                    format!("took longer than its timeout of {limit:?}"),
                ),
                path,
                at: fired.unwrap_or_default(),
            }),
        }
    }

    async fn body<'a>(
        &'a self,
        node: &'a Node,
        at: Place<'a>,
        attempt: u32,
        strand: &'a mut Strand,
    ) -> Walked {
        match &node.body {
            Body::Op { op, inputs } => match op.as_str() {
                "sleep" => self.sleep(inputs, at, strand).await,
                "wait_for_signal" => self.wait_for_signal(inputs, at, strand).await,
                "child_job" => self.child_job(inputs, at, strand).await,
                _ => self.task(op, inputs, at, attempt, strand).await,
            },
            Body::Sequence(nodes) => self.sequence(nodes, at, strand).await,
            Body::Parallel(nodes) => self.parallel(nodes, at, strand).await,
            Body::States(machine) => self.states(machine, at, strand).await,
            Body::Include { recipe, inputs } => self.include(recipe, inputs, at, strand).await,
        }
    }

    /// Makes a fault a failure of this place; or ends the invocation, and never comes back.
    pub(super) async fn fault(
        &self,
        fault: Fault,
        path: &str,
        since: i64,
        strand: &mut Strand,
    ) -> NodeFailure {
        match fault {
            Fault::Own(failure) => NodeFailure { failure, path: path.to_owned(), at: since },
            Fault::Machine(message) => {
                self.end_by(Fatal::Machine { code: "worker_failed", message });
                never(strand).await
            }
        }
    }

    /// Ends the invocation, as soon as the present poll is over.
    pub(super) fn end_by(&self, fatal: Fatal) {
        lock(&self.fatal).get_or_insert(fatal);
    }
}

/// Rests for good: whoever waits for this strand drops it.
pub(super) async fn never<T>(strand: &mut Strand) -> T {
    strand.rest();
    std::future::pending().await
}

fn is_retried(retry: &Retry, failure: &Failure) -> bool {
    retry.on.is_empty() || retry.on.iter().any(|on| *on == failure.code || on == failure.kind.as_str())
}

/// Doubles with every attempt.
fn backoff(retry: &Retry, attempt: u32) -> Duration {
    retry.backoff.saturating_mul(1 << (attempt - 1).min(20)).min(retry.backoff_cap)
}
