-- reschedule.sql: ends a live lease whose job goes on later or elsewhere; no failure, and no new attempt.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 command   $7 delay in ms
-- $8 new route and $9 task, or null   $10 new payload, or null, if its revision is still $11
with held as materialized (
    -- As give_up.sql: first the workflow's row, then the lease's, then the clock.
    select l.*, clock_timestamp() as ended_at, w.generation is distinct from l.generation and l.workflow <> 'adhoc'
               and (l.kind <> 'RECIPE' or w.state = 'TERMINATED') as superseded
    from (select $1::bigint as job_id) a
    cross join lateral (select l.namespace, l.workflow from leasehold.leases l where l.job_id = a.job_id) o
    left join lateral (
        select w.generation, w.state from leasehold.workflows w
        where w.namespace = o.namespace and w.name = o.workflow and o.workflow <> 'adhoc'
        for share skip locked
    ) w on true
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for update skip locked) l
    where (l.workflow = 'adhoc' or w.generation is not null)
      and leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
), job as materialized (
    select j.payload_revision
    from held h cross join lateral (select j.* from leasehold.jobs j where j.job_id = h.job_id for no key update) j
), decided as materialized (
    select h.*, d.how, h.superseded and h.cancel_requested_at is null as stale,
           case d.how when 'rescheduled' then h.ended_at + $7 * interval '1 millisecond' end as due_at
    from held h
    cross join job
    cross join lateral (
        select case when h.cancel_requested_at is not null or h.superseded then 'canceled' else 'rescheduled' end as how
    ) d
    -- A payload that changed meanwhile refuses the whole step, unless the job ends anyway.
    where d.how = 'canceled' or $10::text is null or job.payload_revision = $11
), revised as (
    update leasehold.jobs j set payload = $10::text::json, payload_revision = payload_revision + 1
    where $10::text is not null
      and j.job_id = any (array(select d.job_id from decided d where d.how = 'rescheduled'))
), gone as (
    delete from leasehold.leases l where l.job_id = any (array(select d.job_id from decided d))
), past as (
    insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at,
        ended_at, renewals, command_id, node_id, container_id, failure_kind, failure_code, failure_message, due_at)
    select d.job_id, d.epoch, d.namespace, d.how::leasehold.lease_end, d.worker_id, d.process_id, d.attempt,
           d.granted_at, d.ended_at, d.renewals, $6, d.node_id, d.container_id,
           case when d.stale then 'SYSTEM'::leasehold.failure_kind end, case when d.stale then 'superseded' end,
           case when d.stale then 'its workflow has moved on to another generation' end, d.due_at
    from decided d
), ended as (
    insert into leasehold.ended (job_id, namespace, state, ended_at, workflow, kind, route, rank, generation,
        dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses, failure_kind,
        failure_code, failure_message)
    select d.job_id, d.namespace, 'CANCELED', d.ended_at, d.workflow, d.kind, d.route, d.rank, d.generation,
           d.dispatch_attempt, d.attempt, d.epoch, d.failures_user, d.failures_system, d.failures_timeout, d.losses,
           case when d.stale then 'SYSTEM'::leasehold.failure_kind end, case when d.stale then 'superseded' end,
           case when d.stale then 'its workflow has moved on to another generation' end
    from decided d where d.how = 'canceled'
), again as (
    insert into leasehold.waiting (job_id, namespace, due_at, keep_attempt, kind, route, task, workflow, overlap_limit,
        rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses)
    select d.job_id, d.namespace, d.due_at, true, d.kind, coalesce($8, d.route), coalesce($9, d.task), d.workflow,
           d.overlap_limit, d.rank, d.generation, d.dispatch_attempt, d.attempt, d.epoch, d.failures_user,
           d.failures_system, d.failures_timeout, 0
    from decided d where d.how = 'rescheduled'
), node_slots as (
    delete from leasehold.node_slots s where s.job_id = any (array(select d.job_id from decided d))
), workflow_slots as (
    delete from leasehold.workflow_slots s where s.job_id = any (array(select d.job_id from decided d))
), woken as (
    update leasehold.waiting w set due_at = clock_timestamp()
    where w.job_id = any (array(
        select b.job_id
        from decided f
        cross join lateral (
            select b.job_id from leasehold.waiting b
            where b.namespace = f.namespace and b.workflow = f.workflow and b.overlap_limit is not null
              and b.blocked_by is not null
            order by b.job_id limit f.overlap_limit
        ) b where f.overlap_limit is not null))
)
select d.how, d.due_at, job.payload_revision,
       (select pg_notify('leasehold_waiting', '') from decided limit 1) is null as quiet,
       (select pg_notify('leasehold_ended', '') from decided where how = 'canceled' limit 1) is null as silent
from held h
cross join job
left join decided d on true
