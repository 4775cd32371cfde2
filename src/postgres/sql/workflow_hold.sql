-- workflow_hold.sql: a pause holds RECIPE jobs that are in flight, and keeps the time at which they would have been
-- due; everything else of an older generation has ended CANCELED before.
with from_ready as (
    delete from leasehold.ready where namespace = $1 and workflow = $2
    returning job_id, namespace, due_at, keep_attempt, kind, route, task, workflow, overlap_limit, rank, generation,
              dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses
), taken_back as (
    insert into leasehold.waiting (job_id, namespace, due_at, held_due_at, keep_attempt, kind, route, task, workflow,
        overlap_limit, rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system,
        failures_timeout, losses)
    select job_id, namespace, 'infinity', due_at, keep_attempt, kind, route, task, workflow, overlap_limit, rank, generation,
           dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses
    from from_ready
    returning job_id
), kept_back as (
    update leasehold.waiting
    set held_due_at = due_at, due_at = 'infinity', blocked_by = null
    where namespace = $1 and workflow = $2 and held_due_at is null
    returning job_id
)
select (select count(*) from taken_back) + (select count(*) from kept_back) as held
