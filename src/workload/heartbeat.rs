//! HEARTBEAT: one HTTP probe, made by the worker itself under the policy of [`super::egress`].
//!
//! Redirects are followed here and not by the HTTP client, because each hop has to be parsed, resolved and
//! checked before it is contacted. What a probe can end with:
//!
//! | code | kind | when |
//! |---|---|---|
//! | `unexpected_status` | `USER` | the status is not among the expected ones |
//! | `body_mismatch` | `USER` | the first MiB of the body does not match |
//! | `egress_refused` | `USER` | the address may not be contacted; nothing was sent to it |
//! | `redirect_refused` | `USER` | a redirect may not be followed; nothing was sent to where it leads |
//! | `tls_…` | `USER` | the server's certificate or TLS is not in order, see [`super::probe_tls`] |
//! | `bad_definition` | `USER` | the probe's own definition cannot be used |
//! | `timeout` | `TIMEOUT` | the whole probe took longer than it may |
//! | `unresolved` | `SYSTEM` | the name has no address, or the resolver is down |
//! | `connect_failed` | `SYSTEM` | nobody answers at the address |
//! | `connection_broken` | `SYSTEM` | the connection ended without a whole answer |
//!
//! An answer that is not the expected one is the probe's result, so it is final unless the job allows more
//! tries (`max_user`). The `SYSTEM` ones cannot be told from trouble of the worker's own network, so they are
//! tried again by default.

use std::{path::Path, time::Duration};

use leasehold_actors::{
    domain::{Failure, FailureKind, HeartbeatSpec},
    work::{LeaseContext, WorkOutcome},
};
use regex::bytes::Regex;
use reqwest::StatusCode;
use serde::Serialize;
use tokio::time::Instant;
use url::Url;

use super::{
    egress::Resolve,
    exchange::{Exchange, Plan, Stage, bad_definition, read_body, shown},
};

pub use super::exchange::HeartbeatSettingsError;

/// How much of a body is looked at.
const BODY_LIMIT: usize = 1024 * 1024;

/// Makes probes.
#[derive(Debug)]
pub struct HeartbeatProbe {
    exchange: Exchange,
}

/// What a healthy probe found; the output of its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbeReport {
    /// The final status.
    pub status: u16,
    /// From the first resolution to the last byte that was looked at.
    pub elapsed_ms: u64,
    /// Where the answer came from, without credentials and query.
    pub url: String,
    /// How many redirects were followed.
    pub redirects: u8,
    /// Present, and true, when any certificate was accepted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verify: bool,
}

impl HeartbeatProbe {
    /// A prober with an allow-list, and authorities to trust beside the operating system's.
    ///
    /// # Errors
    /// [`HeartbeatSettingsError`] when a setting cannot be used.
    pub fn new(allow: &[String], ca_file: Option<&Path>) -> Result<Self, HeartbeatSettingsError> {
        Ok(Self { exchange: Exchange::new(allow, ca_file)? })
    }

    /// The same with another resolver.
    #[must_use]
    pub fn with_resolver(self, resolver: impl Resolve) -> Self {
        Self { exchange: self.exchange.with_resolver(resolver) }
    }

    /// Runs the probe of a job under its lease.
    pub(crate) async fn run(&self, spec: &HeartbeatSpec, lease: &LeaseContext) -> WorkOutcome {
        let result = tokio::select! {
            result = self.probe(spec) => result,
            _ = lease.stopped() => return WorkOutcome::Stopped,
        };
        match result {
            Ok(report) => WorkOutcome::Completed {
                exit_code: None,
                output: Some(serde_json::to_string(&report).expect("a report is plain data")),
            },
            Err(failure) => WorkOutcome::Failed(failure),
        }
    }

    /// Makes one probe.
    ///
    /// # Errors
    /// The [`Failure`] that the job ends with, see the table above.
    pub async fn probe(&self, spec: &HeartbeatSpec) -> Result<ProbeReport, Failure> {
        let plan = Plan::new(spec)?;
        let pattern = spec
            .body_match
            .as_deref()
            .map(Regex::new)
            .transpose()
            .map_err(|e| bad_definition(format!("body_match: {e}")))?;
        let stage = Stage::new();
        let limit = Duration::from_millis(u64::try_from(spec.timeout_ms.max(1)).unwrap_or(1));
        let begun = Instant::now();
        let follow = self.follow(&plan, pattern.as_ref(), &stage, begun);
        let Ok(result) = tokio::time::timeout(limit, follow).await else {
            return Err(plan.overdue(limit, &stage));
        };
        result
    }

    async fn follow(
        &self,
        plan: &Plan<'_>,
        pattern: Option<&Regex>,
        stage: &Stage,
        begun: Instant,
    ) -> Result<ProbeReport, Failure> {
        let reached = self.exchange.reach(plan, stage).await?;
        let status = reached.response.status();
        if let Some(pattern) = pattern {
            stage.is("while reading the body");
            let body = read_body(reached.response, &reached.url, BODY_LIMIT).await?;
            if !pattern.is_match(&body) {
                return Err(mismatch(&reached.url, status, &body));
            }
        }
        Ok(ProbeReport {
            status: status.as_u16(),
            elapsed_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            url: shown(&reached.url),
            redirects: reached.redirects,
            insecure_skip_tls_verify: plan.insecure(),
        })
    }
}

/// The body itself is not shown: it may hold what the submitter of the job is not to see.
fn mismatch(url: &Url, status: StatusCode, body: &[u8]) -> Failure {
    let (at, length) = (shown(url), body.len());
    let looked = if length >= BODY_LIMIT { "the first MiB of its body" } else { "its body" };
    let text = format!("{at} answered {status}, but {looked} ({length} bytes) does not match body_match");
    Failure::new(FailureKind::User, "body_mismatch", text)
}
