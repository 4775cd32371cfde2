-- workflow_supersede.sql: ends what was scheduled under older generations; runs after the workflow's row was taken,
-- so that no submit or dispatch of an older generation can come later.
-- What a pause holds gets its generation at the resume, and a RECIPE that was claimed once is in flight: only a
-- terminate ($4) ends these.
with from_waiting as (
    delete from leasehold.waiting
    where namespace = $1 and workflow = $2 and generation < $3
      and ($4 or (held_due_at is null and (kind <> 'RECIPE' or attempt = 0)))
    returning job_id, kind, route, rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system,
              failures_timeout, losses
), from_ready as (
    delete from leasehold.ready
    where namespace = $1 and workflow = $2 and generation < $3 and ($4 or kind <> 'RECIPE' or attempt = 0)
    returning job_id, kind, route, rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system,
              failures_timeout, losses
), stale as (
    select * from from_waiting union all select * from from_ready
), ended as (
    insert into leasehold.ended (job_id, namespace, state, workflow, kind, route, rank, generation, dispatch_attempt,
        attempt, epoch, failures_user, failures_system, failures_timeout, losses, failure_kind, failure_code,
        failure_message)
    select job_id, $1, 'CANCELED', $2, kind, route, rank, generation, dispatch_attempt, attempt, epoch, failures_user,
           failures_system, failures_timeout, losses, 'SYSTEM', 'superseded',
           'its workflow has moved on to another generation'
    from stale
    returning job_id
)
select count(*) as superseded, (select pg_notify('leasehold_ended', '') from ended limit 1) is null as quiet
from ended
