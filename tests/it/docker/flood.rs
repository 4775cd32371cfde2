//! SH-10: a container that prints as fast as it can. What it prints must hold up nothing but itself.

use std::time::{Duration, Instant};

use leasehold::{
    postgres::{cancel::CancelAnswer, read::LogStreamName},
    protocol::domain::{ContainerSpec, JobId, JobState, Namespace, NewJob},
};
use tokio_postgres::Client;

use super::jobs::{Fleet, container};
use crate::support::{eventually::eventually, services};

/// The worker's renew interval, as the fleet's settings have it.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);

const QUOTA: i64 = 4 << 20;

fn flood(end: &str) -> NewJob {
    let line = "0123456789".repeat(10);
    let command = ["sh", "-c", &format!("yes {line} {end}")].map(str::to_owned).to_vec();
    container(ContainerSpec { command, log_quota_bytes: Some(QUOTA), ..ContainerSpec::default() })
}

/// Kilobytes of memory that this process has had at most.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the kernel tells the peak");
    line.split_whitespace().nth(1).expect("a number").parse().unwrap()
}

/// Watches the lease until it is gone; the longest time that passed between two renewals.
async fn longest_gap(client: &Client, job: JobId) -> Duration {
    let query = "select renewals from leasehold.leases where job_id = $1";
    let (mut renewals, mut since, mut longest) = (-1, Instant::now(), Duration::ZERO);
    eventually(Duration::from_secs(180), "the lease has ended", async || {
        let row = client.query_opt(query, &[&job.0]).await.unwrap();
        let Some(row) = row else { return Some(()) };
        longest = longest.max(since.elapsed());
        let now: i32 = row.get(0);
        if now != renewals {
            (renewals, since) = (now, Instant::now());
        }
        None
    })
    .await;
    longest
}

/// Memory stays flat, renewals stay on time, the quota cuts and says so, and the exit is the program's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_megabytes_hold_up_nothing() {
    let endpoint = services::docker_endpoint(1);
    let fleet = Fleet::on(&endpoint).await;
    let client = fleet.database.client().await;
    let before = peak_memory();
    let job = fleet.submit(flood("| head -c 200000000; exit 3")).await;
    fleet.speaks(job).await;
    let gap = longest_gap(&client, job).await;
    let grown = peak_memory() - before;
    let detail = fleet.ends(job).await;
    assert_eq!((detail.row.state, detail.row.exit_code), (JobState::Failed, Some(3)));
    assert!(gap < 2 * RENEW_INTERVAL, "{gap:?} without a renewal");
    assert!(grown < 48 * 1024, "memory grew by {grown} kB");
    let kept = fleet.log(job, LogStreamName::Stdout).await;
    assert_eq!(i64::try_from(kept.len()).unwrap(), QUOTA);
    let remarks = String::from_utf8(fleet.log(job, LogStreamName::System).await).unwrap();
    let dropped = 200_000_000 - QUOTA;
    assert!(remarks.contains(&format!("{dropped} bytes of output were dropped")), "{remarks}");
    fleet.finish(&endpoint).await;
}

/// A cancel and a drain get through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_stopped_within_its_grace() {
    let endpoint = services::docker_endpoint(2);
    let fleet = Fleet::on(&endpoint).await;
    let job = fleet.submit(flood("")).await;
    fleet.speaks(job).await;
    let asked = Instant::now();
    let answer =
        fleet.store.request_cancel(&Namespace::default(), job, Duration::from_secs(1)).await.unwrap();
    assert!(matches!(answer, CancelAnswer::Requested { .. }), "{answer:?}");
    assert_eq!(fleet.ends(job).await.row.state, JobState::Canceled);
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?} to cancel");

    let job = fleet.submit(flood("")).await;
    fleet.speaks(job).await;
    let drained = Instant::now();
    fleet.finish(&endpoint).await;
    // The fleet's shutdown grace is two seconds; ten more are what a drain may take.
    assert!(drained.elapsed() < Duration::from_secs(12), "{:?} to drain", drained.elapsed());
}
