//! What runs nowhere: timers, signals, child jobs. The session does them itself; nothing is compared for them.

use std::{sync::Arc, time::Duration};

use leasehold_actors::{
    domain::{Failure, FailureKind, JobState},
    ports::recipe::{Event, EventBody, JsonText, NewEvent, Wake},
};

use super::{
    Parked, Session,
    env::{Scopes, null},
    failure::{Fault, NodeFailure},
    live::Record,
    lock,
    strand::Strand,
    walk::{Done, Place, Walked, never},
};
use crate::recipe::{
    child::{Child, child_of},
    exact::Json,
    grammar,
    template::ValueTemplate,
};

/// A wait of at most this is waited for in place; the job is not given back for it.
const SHORT: Duration = Duration::from_secs(1);
/// While other strands run: between two looks for what a strand waits for.
const LOOK: Duration = Duration::from_secs(1);
/// The longest wait for a timer between two looks: the database's clock, not ours, says when it fires.
const LONGEST: Duration = Duration::from_secs(30);

impl Session {
    /// Sets a timer when its place is first reached. Later ones find it.
    pub(super) async fn set_timer(&self, path: &str, after: Duration, strand: &mut Strand) -> Arc<Event> {
        let stands = lock(&self.log).visit(path);
        let own = |body: &EventBody| matches!(body, EventBody::TimerSet { .. } | EventBody::TimerFired);
        if let Some(other) = stands.other_than(own) {
            return self.contradicts(&other, "a timer", strand).await;
        }
        if let Some(set) = stands.timer_set {
            return set;
        }
        self.come_alive(path, strand).await;
        match self.record(path, &NewEvent::TimerSet { after }, strand).await {
            Record::Stands(event) => event,
            Record::NotYet | Record::Refused { .. } => never(strand).await,
        }
    }

    /// The timer of a timeout that goes on. One from before a reopening is set anew: the time in which the job had
    /// ended is not counted against it.
    pub(super) async fn set_anew(
        &self,
        path: &str,
        set: Arc<Event>,
        after: Duration,
        strand: &mut Strand,
    ) -> Arc<Event> {
        let (reopened, fired) = {
            let mut log = lock(&self.log);
            (log.reopened(), log.visit(path).timer_fired.is_some())
        };
        if fired || set.ordinal > reopened {
            return set;
        }
        self.look_on(strand).await;
        match self.record(path, &NewEvent::TimerSet { after }, strand).await {
            Record::Stands(event) => event,
            Record::NotYet | Record::Refused { .. } => never(strand).await,
        }
    }

    /// Waits for a timer, and gives the ordinal of its firing.
    pub(super) async fn timer(
        &self,
        path: &str,
        after: Duration,
        scopes: &Scopes<'_>,
        strand: &mut Strand,
    ) -> i64 {
        let set = self.set_timer(path, after, strand).await;
        self.fire(path, &set, Some(scopes), strand).await
    }

    /// Waits until a timer that was set has fired. Without scopes it belongs to a timeout: the strand only looks on.
    pub(super) async fn fire(
        &self,
        path: &str,
        set: &Event,
        scopes: Option<&Scopes<'_>>,
        strand: &mut Strand,
    ) -> i64 {
        if let Some(fired) = lock(&self.log).visit(path).timer_fired {
            return fired.ordinal;
        }
        let EventBody::TimerSet { deadline } = set.body else { return never(strand).await };
        if scopes.is_some() {
            self.come_alive(path, strand).await;
        } else {
            // Beside a strand that replays: it looks on without counting.
            self.look_on(strand).await;
        }
        loop {
            let left = self.until(deadline);
            if left.is_none_or(|left| left.is_zero()) {
                match self.record(path, &NewEvent::TimerFired, strand).await {
                    Record::Stands(event) => return event.ordinal,
                    Record::NotYet => {}
                    Record::Refused { .. } => return never(strand).await,
                }
            }
            let wait = left.filter(|left| !left.is_zero()).unwrap_or(LOOK / 20).min(LONGEST);
            let (parked, rests) = match scopes {
                Some(scopes) => {
                    let needs = self.effective(scopes).ok();
                    (Parked::Waits { wake: Wake::At(deadline), needs }, left.is_none_or(|left| left > SHORT))
                }
                None => (Parked::Limit(deadline), true),
            };
            let park = self.park(path, parked);
            if rests {
                strand.rest();
            }
            tokio::time::sleep(wait).await;
            drop(park);
            self.go_on(strand).await;
        }
    }

    /// `sleep`: `for` says how long.
    pub(super) async fn sleep<'a>(
        &'a self,
        inputs: &'a ValueTemplate,
        at: Place<'a>,
        strand: &'a mut Strand,
    ) -> Walked {
        let input = self.input("sleep", inputs, &at, strand).await?;
        let after = match member(&input, "for").map(|value| duration(&value)) {
            Some(Some(after)) => after,
            _ => {
                let fault = Fault::user("bad_input", "sleep: `for` must be a duration such as 30s, 5m or 2h");
                return Err(self.fault(fault, at.path.as_str(), at.since, strand).await);
            }
        };
        let fired = self.timer(at.path.as_str(), after, &at.scopes, strand).await;
        Ok(Done { output: null(), since: at.since.max(fired), env: at.env })
    }

    /// `wait_for_signal`: `name` says for which; its data is the output.
    pub(super) async fn wait_for_signal<'a>(
        &'a self,
        inputs: &'a ValueTemplate,
        mut at: Place<'a>,
        strand: &'a mut Strand,
    ) -> Walked {
        let input = self.input("wait_for_signal", inputs, &at, strand).await?;
        let Some(Json::String(name)) = member(&input, "name") else {
            let fault = Fault::user("bad_input", "wait_for_signal: `name` must be the name of a signal");
            return Err(self.fault(fault, at.path.as_str(), at.since, strand).await);
        };
        let path = at.path.to_string();
        let stands = lock(&self.log).visit(&path);
        if let Some(other) = stands.other_than(|body| matches!(body, EventBody::Signal { .. })) {
            return self.contradicts(&other, &format!("a wait for signal {name:?}"), strand).await;
        }
        let taken = match stands.signal {
            Some(taken) => taken,
            None => {
                let event = NewEvent::TakeSignal { name: name.clone() };
                match self.wait_for(&path, &event, Wake::Signal(name.clone()), &at.scopes, strand).await {
                    Ok(event) => event,
                    Err(fault) => return Err(self.fault(fault, &path, at.since, strand).await),
                }
            }
        };
        let EventBody::Signal { name: recorded, data, .. } = &taken.body else {
            return never(strand).await;
        };
        if *recorded != name {
            return self.contradicts(&taken, &format!("a wait for signal {name:?}"), strand).await;
        }
        at.env.set_signal(taken.ordinal, Arc::clone(data));
        Ok(Done { output: Arc::clone(data), since: at.since.max(taken.ordinal), env: at.env })
    }

    /// `child_job`: submits a job under the lease, and waits for its end; its result is the output.
    pub(super) async fn child_job<'a>(
        &'a self,
        inputs: &'a ValueTemplate,
        at: Place<'a>,
        strand: &'a mut Strand,
    ) -> Walked {
        let input = self.input("child_job", inputs, &at, strand).await?;
        let path = at.path.to_string();
        let stands = lock(&self.log).visit(&path);
        let own =
            |body: &EventBody| matches!(body, EventBody::ChildStarted { .. } | EventBody::ChildEnded { .. });
        if let Some(other) = stands.other_than(own) {
            return self.contradicts(&other, "a child job", strand).await;
        }
        let started = match stands.child_started {
            Some(started) => started,
            None => {
                let Child { job, cancel_with_parent } = match child_of(&self.job.namespace, &input) {
                    Ok(child) => child,
                    Err(reason) => {
                        let fault = Fault::user("bad_input", format!("child_job: {reason}"));
                        return Err(self.fault(fault, &path, at.since, strand).await);
                    }
                };
                let mut job = Box::new(job);
                job.idempotency_key =
                    Some(super::task::key(self.job.job, &path, 1, lock(&self.log).round(&path)));
                self.come_alive(&path, strand).await;
                let event = NewEvent::StartChild { job, cancel_with_parent };
                match self.record(&path, &event, strand).await {
                    Record::Stands(event) => event,
                    Record::Refused { code, message } => {
                        return Err(self.fault(Fault::user(code, message), &path, at.since, strand).await);
                    }
                    Record::NotYet => return never(strand).await,
                }
            }
        };
        let EventBody::ChildStarted { job: child } = started.body else { return never(strand).await };
        let ended = match stands.child_ended {
            Some(ended) => ended,
            None => {
                let wake = Wake::Child(child);
                match self.wait_for(&path, &NewEvent::ChildEnded, wake, &at.scopes, strand).await {
                    Ok(event) => event,
                    Err(fault) => return Err(self.fault(fault, &path, at.since, strand).await),
                }
            }
        };
        let EventBody::ChildEnded { state, output, failure, .. } = &ended.body else {
            return never(strand).await;
        };
        let since = at.since.max(ended.ordinal);
        let failure = match (state, failure) {
            (JobState::Completed, _) => {
                let output = output.clone().unwrap_or_else(null);
                return Ok(Done { output, since, env: at.env });
            }
            (_, Some(failure)) => failure.clone(),
            (state, None) => Failure::new(
                FailureKind::User,
                format!("child_{}", state.as_str().to_lowercase()),
                format!("the child job {child} ended as {state}"),
            ),
        };
        Err(NodeFailure { failure, path, at: since })
    }

    /// Asks again and again until something has come that is not there yet.
    async fn wait_for(
        &self,
        path: &str,
        event: &NewEvent,
        wake: Wake,
        scopes: &Scopes<'_>,
        strand: &mut Strand,
    ) -> Result<Arc<Event>, Fault> {
        self.come_alive(path, strand).await;
        loop {
            match self.record(path, event, strand).await {
                Record::Stands(event) => return Ok(event),
                Record::Refused { code, message } => return Err(Fault::user(code, message)),
                Record::NotYet => {}
            }
            let needs = self.effective(scopes).ok();
            let park = self.park(path, Parked::Waits { wake: wake.clone(), needs });
            strand.rest();
            tokio::time::sleep(LOOK).await;
            drop(park);
            self.go_on(strand).await;
        }
    }

    /// The input of an op that the session does itself.
    async fn input(
        &self,
        op: &str,
        inputs: &ValueTemplate,
        at: &Place<'_>,
        strand: &mut Strand,
    ) -> Result<JsonText, NodeFailure> {
        let checked =
            inputs.render(&at.env).map_err(|error| Fault::of_template(&error)).and_then(|rendered| {
                let json = Json::parse(&rendered.text).map_err(|error| error.to_string());
                json.and_then(|json| grammar::ops::check_given(op, &json))
                    .map_err(|reason| Fault::user("bad_input", format!("{op}: {reason}")))?;
                Ok(rendered.text.into())
            });
        match checked {
            Ok(input) => Ok(input),
            Err(fault) => Err(self.fault(fault, at.path.as_str(), at.since, strand).await),
        }
    }
}

fn member(object: &str, key: &str) -> Option<Json> {
    match Json::parse(object) {
        Ok(Json::Object(mut members)) => members.remove(key),
        _ => None,
    }
}

/// `30s`, `1h 30m`; a number is seconds.
fn duration(value: &Json) -> Option<Duration> {
    let after = match value {
        Json::String(text) => humantime::parse_duration(text).ok()?,
        Json::Number(text) => Duration::from_secs(text.parse().ok()?),
        _ => return None,
    };
    (after <= Duration::from_secs(366 * 86_400)).then_some(after)
}
