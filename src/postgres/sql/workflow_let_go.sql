-- workflow_let_go.sql: a resume gives held runs their time back, and the generation in force.
with freed as (
    update leasehold.waiting
    set due_at = held_due_at, held_due_at = null,
        generation = case when kind = 'RECIPE' and attempt > 0 then generation else $3 end
    where namespace = $1 and workflow = $2 and held_due_at is not null
    returning job_id, generation
), stamped as (
    update leasehold.jobs j set generation = freed.generation
    from freed
    where j.job_id = freed.job_id and j.namespace = $1 and j.generation <> freed.generation
)
select count(*) as freed, (select pg_notify('leasehold_waiting', '') from freed limit 1) is null as quiet
from freed
