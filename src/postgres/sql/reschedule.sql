-- reschedule.sql: ends a live lease whose job goes on later or elsewhere; no failure, and no new attempt.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 command   $7 delay in ms
-- $8 new route and $9 task, or null   $10 new payload, or null, if its revision is still $11
-- RECIPE: $12 whether it waits for anything but the delay: for $13 a time, $14 signals, $15 children
--         $16 whether needs are published, $17 as a handoff, $18 declined by what: $19 cpu  $20 memory  $21 storage  $22 os
--         $23 architecture  $24 variant  $25 image  $26 image digest   $27 so many handoffs in a row are too many
--         $28 of a handoff, in words: what was needed, and what was there
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
), beside as materialized (
    select r.job_id, n.handoffs, n.declined
    from held h
    cross join lateral (select r.* from leasehold.recipes r where r.job_id = h.job_id for no key update) r
    cross join lateral (
        select case when r.handoff_at = r.events then r.handoffs else 0 end as before
    ) b
    cross join lateral (
        select b.before + 1 as handoffs, d.declined || case when $18::text is null or $18 = any (d.declined) then '{}' else array[$18::text] end as declined
        from (select case when b.before = 0 then '{}' else r.declined end as declined) d
    ) n
), decided as materialized (
    select h.*, d.how, h.superseded and h.cancel_requested_at is null as stale,
           case when d.how <> 'rescheduled' then null
                when not $12 or d.has_come then h.ended_at + $7 * interval '1 millisecond'
                when $13 is null then 'infinity'
                else greatest($13, h.ended_at + $7 * interval '1 millisecond') end as due_at,
           b.handoffs, b.declined
    from held h
    cross join job
    left join beside b on true
    cross join lateral (
        select case when h.cancel_requested_at is not null or h.superseded then 'canceled'
                    when $17 and b.handoffs >= $27 then 'failed' else 'rescheduled' end as how,
               $13 <= h.ended_at
               or exists (select from leasehold.signals s
                          where s.job_id = h.job_id and s.taken is null and s.name = any ($14))
               or exists (select from leasehold.ended e where e.job_id = any ($15))
               -- One that is no more does not end any more.
               or (select count(*) from leasehold.jobs j where j.job_id = any ($15)) < cardinality($15::bigint[])
               as has_come
    ) d
    -- A payload that changed meanwhile refuses the whole step, unless the job ends anyway.
    where d.how <> 'rescheduled' or $10::text is null or job.payload_revision = $11
), told as materialized (
    select d.*,
           case when d.how = 'failed' or d.stale then 'SYSTEM'::leasehold.failure_kind end as why_kind,
           case when d.how = 'failed' then 'handoff_loop' when d.stale then 'superseded' when d.how = 'rescheduled' and $17 then 'handoff' end as why_code,
           case when d.how = 'failed' then
                    left(format('handed off %s times in a row with nothing recorded between, declined by %s', d.handoffs,
                                array_to_string(d.declined, ', ')), 1000)
                when d.stale then 'its workflow has moved on to another generation'
                when d.how = 'rescheduled' and $17 then left($28, 1000) end as why_message
    from decided d
), revised as (
    update leasehold.jobs j set payload = $10::text::json, payload_revision = payload_revision + 1
    where $10::text is not null
      and j.job_id = any (array(select d.job_id from decided d where d.how = 'rescheduled'))
), published as (
    update leasehold.recipes r
    set wake_epoch = case when $12 then d.epoch end, wake_signals = $14, wake_children = $15,
        -- Who took it over says nothing about whether its payload was accepted.
        refusals = case when d.claim_epoch = d.epoch then 0 else r.refusals end,
        execution_version = case when $10::text is null then r.execution_version
                                 else leasehold.execution_version($10::text::json) end,
        published_at = case when $16 then d.ended_at else r.published_at end,
        hint_epoch = case when not $16 then r.hint_epoch when $17 then d.epoch end,
        cpu_millis = case when $16 then $19 else r.cpu_millis end,
        memory_bytes = case when $16 then $20 else r.memory_bytes end,
        ephemeral_storage_bytes = case when $16 then $21 else r.ephemeral_storage_bytes end,
        os = case when $16 then $22 else r.os end, architecture = case when $16 then $23 else r.architecture end,
        variant = case when $16 then $24 else r.variant end,
        image_reference = case when $16 then $25 else r.image_reference end,
        image_digest = case when $16 then $26 else r.image_digest end,
        handoffs = case when $17 then d.handoffs else r.handoffs end,
        handoff_at = case when $17 then r.events else r.handoff_at end,
        declined = case when $17 then d.declined else r.declined end
    from decided d
    where r.job_id = d.job_id and r.job_id = $1 and d.how = 'rescheduled'
), gone as (
    delete from leasehold.leases l where l.job_id = any (array(select d.job_id from decided d))
), past as (
    insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at,
        ended_at, renewals, command_id, node_id, container_id, failure_kind, failure_code, failure_message, due_at)
    select d.job_id, d.epoch, d.namespace, d.how::leasehold.lease_end, d.worker_id, d.process_id, d.attempt,
           d.granted_at, d.ended_at, d.renewals, $6, d.node_id, d.container_id, d.why_kind, d.why_code, d.why_message,
           nullif(d.due_at, 'infinity')
    from told d
), ended as (
    insert into leasehold.ended (job_id, namespace, state, ended_at, workflow, kind, route, rank, generation,
        dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses, failure_kind,
        failure_code, failure_message)
    select d.job_id, d.namespace, upper(d.how)::leasehold.job_end, d.ended_at, d.workflow, d.kind, d.route, d.rank,
           d.generation, d.dispatch_attempt, d.attempt, d.epoch, d.failures_user,
           d.failures_system + (d.how = 'failed')::integer, d.failures_timeout, d.losses, d.why_kind, d.why_code,
           d.why_message
    from told d where d.how <> 'rescheduled'
), again as (
    insert into leasehold.waiting (job_id, namespace, due_at, keep_attempt, kind, route, task, workflow, overlap_limit,
        rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses)
    select d.job_id, d.namespace, d.due_at, true, d.kind, coalesce($8, d.route), coalesce($9, d.task), d.workflow,
           d.overlap_limit, d.rank, d.generation, d.dispatch_attempt, d.attempt, d.epoch, d.failures_user,
           d.failures_system, d.failures_timeout, 0
    from decided d where d.how = 'rescheduled'
), node_slots as (
    delete from leasehold.node_slots s where s.job_id = any (array(select d.job_id from decided d))
), task_containers as (
    delete from leasehold.task_containers t
    where t.job_id = any (array(select d.job_id from decided d where d.kind = 'RECIPE'))
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
select d.how, nullif(d.due_at, 'infinity') as due_at, job.payload_revision,
       (select pg_notify('leasehold_waiting', '') from decided limit 1) is null as quiet,
       (select pg_notify('leasehold_ended', '') from decided where how <> 'rescheduled' limit 1) is null as silent
from held h
cross join job
left join decided d on true
