-- cancel_job.sql: cancels a job that has not started, or asks the holder of its lease to.
-- A job that moves between the tables at this moment is seen in none of them: then the caller asks again.
with family as materialized (
    -- First the children that end with it: whoever holds one of them may be on his way to this job.
    select leasehold.lock_family($2) as members
), from_waiting as (
    delete from leasehold.waiting where job_id = $2 and namespace = $1 and (select f.members from family f) >= 0
    returning job_id, kind, route, workflow, rank, generation, dispatch_attempt, attempt, epoch, failures_user,
              failures_system, failures_timeout, losses
), from_ready as (
    delete from leasehold.ready where job_id = $2 and namespace = $1
    returning job_id, kind, route, workflow, rank, generation, dispatch_attempt, attempt, epoch, failures_user,
              failures_system, failures_timeout, losses
), ended as (
    insert into leasehold.ended (job_id, namespace, state, kind, route, workflow, rank, generation, dispatch_attempt,
        attempt, epoch, failures_user, failures_system, failures_timeout, losses)
    select job_id, $1, 'CANCELED', kind, route, workflow, rank, generation, dispatch_attempt, attempt, epoch,
           failures_user, failures_system, failures_timeout, losses
    from (select * from from_waiting union all select * from from_ready) stood
    returning job_id, workflow
), asked as (
    update leasehold.leases l
    set cancel_requested_at = coalesce(l.cancel_requested_at, clock_timestamp()),
        cancel_deadline = coalesce(l.cancel_deadline, clock_timestamp()
            + (coalesce((j.definition->>'stop_grace_ms')::bigint, $3) + l.lease_ms) * interval '1 ms')
    from leasehold.jobs j
    where l.job_id = $2 and l.namespace = $1 and j.job_id = l.job_id
    returning l.job_id, l.cancel_requested_at, l.cancel_deadline
), woken as (
    -- Runs that waited for this one need wait no longer.
    update leasehold.waiting w
    set due_at = clock_timestamp()
    from ended
    where w.namespace = $1 and w.workflow = ended.workflow and w.job_id <> ended.job_id
      and w.overlap_limit is not null and w.blocked_by is not null and w.held_due_at is null
    returning w.job_id
)
select exists (select from ended) as canceled, asked.cancel_requested_at, asked.cancel_deadline,
       (select e.state::text from leasehold.ended e where e.job_id = $2 and e.namespace = $1) as ended_state,
       exists (select from leasehold.jobs j where j.job_id = $2 and j.namespace = $1) as known,
       (select count(pg_notify('leasehold_cancel', job_id::text)) from asked) as told,
       (select count(pg_notify('leasehold_ended', '')) from ended) as announced,
       (select count(pg_notify('leasehold_waiting', '')) from (select from woken limit 1) w) as woken
from (select) one left join asked on true
