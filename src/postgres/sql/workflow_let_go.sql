-- workflow_let_go.sql: a resume gives held runs their time back, and the generation in force; what is due is QUEUED.
with freed as (
    delete from leasehold.waiting
    where namespace = $1 and workflow = $2 and held_due_at is not null
    returning *, case when kind = 'RECIPE' and attempt > 0 then generation else $3 end as generation_now,
              held_due_at <= clock_timestamp() as due
), stamped as (
    update leasehold.jobs j set generation = freed.generation_now
    from freed
    where j.job_id = freed.job_id and j.namespace = $1 and j.generation <> freed.generation_now
), queued as (
    insert into leasehold.ready (job_id, namespace, due_at, keep_attempt, kind, route, task, workflow, overlap_limit,
        rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses)
    select job_id, namespace, held_due_at, keep_attempt, kind, route, task, workflow, overlap_limit, rank, generation_now,
           dispatch_attempt + 1, attempt, epoch, failures_user, failures_system, failures_timeout, losses
    from freed where due
    returning 1
), later as (
    insert into leasehold.waiting (job_id, namespace, due_at, keep_attempt, kind, route, task, workflow, overlap_limit,
        rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses)
    select job_id, namespace, held_due_at, keep_attempt, kind, route, task, workflow, overlap_limit, rank, generation_now,
           dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses
    from freed where not due
    returning 1
)
select count(*) as freed, (select pg_notify('leasehold_ready', '') from queued limit 1) is null as quiet,
       (select pg_notify('leasehold_waiting', '') from later limit 1) is null as silent
from freed
