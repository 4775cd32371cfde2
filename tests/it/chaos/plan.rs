//! The jobs of a run, by seed: each with the script of its work and the end that the script prescribes. Retry
//! policies are so generous that no fault decides how a job ends.

use std::{net::SocketAddr, ops::Range, time::Duration};

use leasehold::protocol::domain::{ContainerSpec, JobDefinition, NewJob, PullPolicy, RetryPolicy};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    history::{Kind, Outcome},
    ledger::Ledger,
};
use crate::support::engine::IMAGE;

/// One job to come.
#[derive(Debug)]
pub struct Script {
    pub job: NewJob,
    pub kind: Kind,
    pub outcome: Outcome,
    /// For a job that is to be cancelled: when, and whether that counts from its start or its submission.
    pub cancel: Option<(Duration, From)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Submission,
    Start,
}

/// Draws scripts without end.
#[derive(Debug)]
pub struct Plan {
    dice: StdRng,
    drawn: u64,
    seed: u64,
    ledger: SocketAddr,
    probes: SocketAddr,
    /// Of a hundred jobs.
    containers: u32,
    /// How long work takes, in milliseconds.
    work: Range<u64>,
}

impl Plan {
    pub fn new(seed: u64, ledger: &Ledger, containers: u32, work: Range<u64>) -> Self {
        let dice = StdRng::seed_from_u64(seed);
        Self { dice, drawn: 0, seed, ledger: ledger.address, probes: ledger.probes, containers, work }
    }

    pub fn next(&mut self) -> Script {
        self.drawn += 1;
        let roll = self.dice.random_range(0..100);
        let kind = match roll {
            roll if roll < self.containers => Kind::Container,
            roll if roll < self.containers + 5 => Kind::Heartbeat,
            _ => Kind::Handler,
        };
        let outcome = match self.dice.random_range(0..100) {
            0..10 => Outcome::Failed { code: self.dice.random_range(1..100).to_string() },
            10..20 => Outcome::Canceled,
            _ => Outcome::Completed,
        };
        let ms = self.dice.random_range(self.work.clone());
        let (mut job, outcome) = match kind {
            Kind::Handler => (self.handler(&outcome, ms), outcome),
            Kind::Container => (self.container(&outcome, ms), outcome),
            Kind::Heartbeat => self.heartbeat(outcome, ms),
        };
        job.retry = RetryPolicy {
            max_user: Some(1),
            max_system: Some(1000),
            max_timeout: Some(1000),
            backoff_ms: Some(100),
            backoff_cap_ms: Some(1000),
        };
        job.idempotency_key = Some(format!("chaos-{}-{}", self.seed, self.drawn));
        let cancel = (outcome == Outcome::Canceled).then(|| {
            let after = Duration::from_millis(self.dice.random_range(0..1500));
            // Probes write no ledger; of the others some are cancelled before anybody may have begun them.
            let from = if kind == Kind::Heartbeat || self.dice.random_range(0..5) == 0 {
                From::Submission
            } else {
                From::Start
            };
            (after, from)
        });
        Script { job, kind, outcome, cancel }
    }

    fn handler(&self, outcome: &Outcome, ms: u64) -> NewJob {
        let fails = if let Outcome::Failed { code } = outcome { Some(code) } else { None };
        let ms = if *outcome == Outcome::Canceled { FOR_EVER_MS } else { ms };
        NewJob::handler("script", &serde_json::json!({ "ms": ms, "fails": fails }))
    }

    fn heartbeat(&self, outcome: Outcome, ms: u64) -> (NewJob, Outcome) {
        let (status, ms, outcome) = match outcome {
            Outcome::Completed => (200, ms, outcome),
            Outcome::Canceled => (200, FOR_EVER_MS, outcome),
            Outcome::Failed { .. } => (500, ms, Outcome::Failed { code: "unexpected_status".to_owned() }),
        };
        let spec = serde_json::json!({ "url": format!("http://{}/{status}/{ms}", self.probes), "timeout_ms": 900_000 });
        (NewJob::ad_hoc(JobDefinition::Heartbeat(serde_json::from_value(spec).unwrap())), outcome)
    }

    fn container(&self, outcome: &Outcome, ms: u64) -> NewJob {
        let code = if let Outcome::Failed { code } = outcome { code.as_str() } else { "0" };
        let ms = if *outcome == Outcome::Canceled { FOR_EVER_MS } else { ms };
        let script = SHELL
            .replace("PORT", &self.ledger.port().to_string())
            .replace("TICKS", &(ms / 500).max(1).to_string())
            .replace("CODE", code);
        let spec = ContainerSpec {
            image: IMAGE.to_owned(),
            command: vec!["sh".to_owned(), "-c".to_owned(), script],
            network: Some("host".to_owned()),
            stop_grace_ms: Some(1000),
            pull: PullPolicy::Never,
            ..ContainerSpec::default()
        };
        NewJob::ad_hoc(JobDefinition::Container(spec))
    }
}

/// Longer than any run.
const FOR_EVER_MS: u64 = 3_600_000;

/// Writes to the ledger through one connection. When it ends by itself it waits until its last word is out;
/// when it is told to end it goes at once, as a well-behaved program does.
const SHELL: &str = "trap 'exit 143' TERM
mkfifo /ledger; nc 127.0.0.1 PORT </ledger & nc=$!
exec 3>/ledger
read up _ </proc/uptime
echo \"start container 0 $LEASEHOLD_JOB_ID $LEASEHOLD_FENCING_EPOCH $up\" >&3
n=0
while [ $n -lt TICKS ]; do
  n=$((n+1)); sleep 0.5; read up _ </proc/uptime; echo \"tick $up\" >&3
done
read up _ </proc/uptime; echo \"end $up\" >&3
exec 3>&-; wait $nc
exit CODE";
