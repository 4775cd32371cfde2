-- retry_job.sql: reopens a FAILED or CANCELED job as a new attempt with fresh failure counters; what it was is noted.
with was as (
    delete from leasehold.ended where job_id = $2 and namespace = $1 and state in ('FAILED', 'CANCELED')
    returning *
), noted as (
    insert into leasehold.reopenings (job_id, namespace, state, ended_at, attempt, exit_code, failure_kind, failure_code,
        failure_message)
    select job_id, namespace, state, ended_at, attempt, exit_code, failure_kind, failure_code, failure_message from was
), now as (
    select was.*, coalesce(w.generation, was.generation) as generation_now, w.overlap_limit,
           w.state is not distinct from 'PAUSED' as held
    from was left join leasehold.workflows w on w.namespace = was.namespace and w.name = was.workflow
), stamped as (
    update leasehold.jobs j set generation = now.generation_now
    from now
    where j.job_id = now.job_id and j.namespace = $1 and j.generation <> now.generation_now
), beside as (
    update leasehold.recipes r set handoffs = 0, refusals = 0 where r.job_id = any (array(select was.job_id from was))
), queued as (
    insert into leasehold.ready (job_id, namespace, due_at, kind, route, workflow, overlap_limit, rank, generation,
        dispatch_attempt, attempt, epoch)
    select job_id, namespace, clock_timestamp(), kind, route, workflow, overlap_limit, rank, generation_now,
           dispatch_attempt + 1, attempt, epoch
    from now where not held
    returning job_id
), held as (
    insert into leasehold.waiting (job_id, namespace, due_at, held_due_at, kind, route, workflow, overlap_limit, rank,
        generation, dispatch_attempt, attempt, epoch)
    select job_id, namespace, 'infinity', clock_timestamp(), kind, route, workflow, overlap_limit, rank, generation_now,
           dispatch_attempt, attempt, epoch
    from now where held
    returning job_id
)
select exists (select from queued) as queued, exists (select from held) as held,
       (select s.state from leasehold.job_states s where s.job_id = $2 and s.namespace = $1) as state_before,
       (select count(pg_notify('leasehold_ready', '')) from queued) as told
