//! Values that the unit tests of this crate are made of.

use std::{sync::Arc, time::Duration};

use crate::{
    domain::{
        CommandId, Epoch, JobId, JobKind, LeaseToken, Namespace, ProcessId, RetryPolicy, Route, WorkerId,
    },
    ports::{Authority, Claimant, Grant, OpenClaim},
};

/// The lease that fixtures are granted for.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) fn owner() -> Claimant {
    Claimant {
        namespace: Namespace::default(),
        worker: WorkerId::new("w-1").expect("a plain name"),
        process: ProcessId::generate(),
    }
}

pub(crate) fn claim(limit: u32) -> OpenClaim {
    OpenClaim {
        owner: owner(),
        command: CommandId::generate(),
        repeat: false,
        routes: Arc::from([Route::handler("noop")]),
        limit,
        lease: LEASE,
    }
}

pub(crate) fn grant(job: i64, epoch: i64) -> Arc<Grant> {
    Arc::new(Grant {
        authority: Authority {
            owner: owner(),
            job: JobId(job),
            token: LeaseToken::generate(),
            epoch: Epoch(epoch),
        },
        kind: JobKind::Handler,
        route: Route::handler("noop"),
        workflow: "adhoc".to_owned(),
        generation: 1,
        dispatch_attempt: 1,
        attempt: 1,
        lease: LEASE,
        definition: Arc::from(r#"{"handler":"noop"}"#),
        payload: Arc::from("null"),
        timeout: None,
        retry: RetryPolicy::default(),
        trace_parent: None,
        placement: None,
    })
}
