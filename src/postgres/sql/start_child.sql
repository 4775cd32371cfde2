-- start_child.sql: submits a child job of a recipe under its live lease, and records that, unless it was started before.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 path   $7 its hash   $8 cancelled with its parent
-- What to submit: $9 kind   $10 definition   $11 payload   $12 workflow   $13 priority   $14 run at   $15 idempotency key
--                 $16 timeout in ms   $17 retry policy   $18 trace
-- $19 bytes   $20 most events   $21 most bytes of a log   $22 most jobs above a child
with recursive held as materialized (
    -- In key share mode: renewals go on meanwhile, an end or a takeover waits for us.
    select l.job_id, l.epoch
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for key share skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
), log as materialized (
    -- One writer after the other, so that ordinals have no gaps; then the clock.
    select r.*, h.epoch, clock_timestamp() as now
    from held h
    cross join lateral (select r.* from leasehold.recipes r where r.job_id = h.job_id for no key update) r
), standing as materialized (
    select e.*
    from log g
    cross join lateral (
        select e.* from leasehold.recipe_events e
        where e.job_id = g.job_id and e.era = g.era and e.sort = 'child_started' and e.path_hash = $7
    ) e
), line (job_id, above) as (
    -- The job and all that it is a descendant of. Of more than there may be, one is enough.
    select g.job_id, 1::bigint from log g
    union all
    select k.parent_id, l.above + 1
    from line l
    cross join lateral (select k.* from leasehold.recipe_children k where k.job_id = l.job_id limit 1) k
    where l.above <= $22
), made as materialized (
    select g.*, g.events < $20 and g.bytes + $19 <= $21 as has_room,
           exists (
               select from line l
               cross join lateral (select j.* from leasehold.jobs j where j.job_id = l.job_id limit 1) j
               join leasehold.workflows w on w.namespace = $3 and w.name = j.workflow and w.overlap_serial
               where j.workflow = $12) as would_deadlock,
           exists (select from line l where l.above > $22) as too_deep
    from log g
    where not exists (select from standing)
), child as materialized (
    select s.*
    from made m
    cross join lateral leasehold.submit_child($9, $10::text::json, $11::text::json, $3, $12, $13, $14, $15, $16,
                                              $17::text::json, $18) s
    where m.has_room and not m.would_deadlock and not m.too_deep
), linked as (
    insert into leasehold.recipe_children (job_id, namespace, parent_id, path, cancel_with_parent)
    select c.job_id, $3, $1, $6, $8 from child c where c.job_id is not null
    on conflict do nothing
), fresh as (
    insert into leasehold.recipe_events (job_id, ordinal, namespace, path, path_hash, sort, era, recorded_at, worker_id,
        epoch, bytes, child_id)
    select m.job_id, m.events + 1, m.namespace, $6, $7, 'child_started', m.era, m.now, $4, m.epoch, $19, c.job_id
    from made m
    cross join child c
    where c.job_id is not null
    returning *
), counted as (
    update leasehold.recipes r set events = f.ordinal, bytes = r.bytes + f.bytes, refusals = 0
    from fresh f
    where r.job_id = f.job_id and r.job_id = $1
)
select case when s.standing then 'standing' when e.ordinal is not null then 'recorded'
            when m.events >= $20 then 'events' when not m.has_room then 'bytes' else 'refused' end as verdict,
       case when m.would_deadlock then 'would_deadlock' when m.too_deep then 'too_deep' else c.refused end as refused,
       case when m.would_deadlock then format('workflow %s is serial, and a run of it waits for this child', $12)
            when m.too_deep then format('%s jobs stand above this child already, which is the most', $22)
            else c.reason end as reason,
       e.ordinal, e.path, e.sort::text, e.op, e.input_hash, e.attempt, e.outcome, e.value::text, e.directive::text,
       e.failure_kind::text, e.failure_code, e.failure_message, e.exit_code, e.deadline, e.name, e.signal_id, e.child_id,
       e.recorded_at, e.worker_id, e.epoch
from log g
left join made m on true
left join child c on true
cross join lateral (select exists (select from standing) as standing) s
left join (select * from standing union all select * from fresh) e on true
