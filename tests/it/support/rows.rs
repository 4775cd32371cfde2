//! Puts jobs where a worker would have put them, for tests of what people see of that: no worker runs here.

use leasehold::protocol::domain::JobId;
use tokio_postgres::Client;

/// QUEUED → RUNNING, under a lease of worker `w1` that lasts this long from now (it may lie in the past).
pub async fn hold(client: &Client, job: JobId, seconds: f64) {
    let moved = client
        .execute(
            "with r as (delete from leasehold.ready where job_id = $1 returning *)
             insert into leasehold.leases (job_id, lease_expires_at, epoch, claim_epoch, granted_at, token, process_id, lease_ms,
                 namespace, worker_id, kind, route, task, workflow, overlap_limit, rank, generation, dispatch_attempt, attempt,
                 failures_user, failures_system, failures_timeout, losses)
             select job_id, clock_timestamp() + $2 * interval '1 second', epoch + 1, epoch + 1, clock_timestamp(),
                 gen_random_uuid(), gen_random_uuid(), 30000, namespace, 'w1', kind, route, task, workflow, overlap_limit, rank,
                 generation, dispatch_attempt, attempt + 1, failures_user, failures_system, failures_timeout, losses
             from r",
            &[&job.0, &seconds],
        )
        .await
        .unwrap();
    assert_eq!(moved, 1, "job {job} was not QUEUED");
}

/// RUNNING → FAILED, kind USER, with this exit code.
pub async fn fail(client: &Client, job: JobId, exit_code: i32) {
    let moved = client
        .execute(
            "with l as (delete from leasehold.leases where job_id = $1 returning *),
             h as (insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at,
                     renewals, exit_code, failure_kind, failure_code, failure_message)
                 select job_id, epoch, namespace, 'failed', worker_id, process_id, attempt, granted_at, renewals, $2::int4, 'USER',
                     $2::int4::text, 'it failed' from l)
             insert into leasehold.ended (job_id, namespace, state, workflow, kind, route, rank, generation, dispatch_attempt,
                 attempt, epoch, failures_user, failures_system, failures_timeout, losses, exit_code, failure_kind, failure_code,
                 failure_message)
             select job_id, namespace, 'FAILED', workflow, kind, route, rank, generation, dispatch_attempt, attempt, epoch, 1, 0,
                 0, 0, $2::int4, 'USER', $2::int4::text, 'it failed' from l",
            &[&job.0, &exit_code],
        )
        .await
        .unwrap();
    assert_eq!(moved, 1, "job {job} was not RUNNING");
}

/// RUNNING → COMPLETED.
pub async fn complete(client: &Client, job: JobId) {
    let moved = client
        .execute(
            "with l as (delete from leasehold.leases where job_id = $1 returning *),
             h as (insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at,
                     renewals, exit_code)
                 select job_id, epoch, namespace, 'completed', worker_id, process_id, attempt, granted_at, renewals, 0 from l)
             insert into leasehold.ended (job_id, namespace, state, workflow, kind, route, rank, generation, dispatch_attempt,
                 attempt, epoch, failures_user, failures_system, failures_timeout, losses, exit_code)
             select job_id, namespace, 'COMPLETED', workflow, kind, route, rank, generation, dispatch_attempt, attempt, epoch,
                 failures_user, failures_system, failures_timeout, losses, 0 from l",
            &[&job.0],
        )
        .await
        .unwrap();
    assert_eq!(moved, 1, "job {job} was not RUNNING");
}

/// Every job stands in exactly one of the four tables.
pub async fn conserved(client: &Client) {
    let lost: Vec<i64> = client
        .query(
            "select j.job_id from leasehold.jobs j left join (
                 select job_id from leasehold.waiting union all select job_id from leasehold.ready
                 union all select job_id from leasehold.leases union all select job_id from leasehold.ended) s using (job_id)
             group by j.job_id having count(s.job_id) <> 1",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(lost.is_empty(), "jobs in no table, or in two: {lost:?}");
}
