-- record.sql: appends one event to a recipe's log under a live lease, unless one of its sort stands at its path.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 path   $7 its hash   $8 sort
-- task: $9 op   $10 input hash   $11 attempt   $12 outcome   $13 result   $14 directive   $15 failure kind   $16 code
--       $17 message   $18 exit code          timer_set: $19 due after so many microseconds          signal: $20 name
-- $21 bytes that are known to us   $22 most events   $23 most bytes of a log
with held as materialized (
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
        where e.job_id = g.job_id and e.era = g.era and e.sort = $8::leasehold.event_sort and e.path_hash = $7
    ) e
), begun as materialized (
    -- What a timer's firing, or a child's end, goes back to. Begun before a reopening it goes on after it; begun anew,
    -- the newest counts.
    select e.deadline, e.child_id
    from log g
    cross join lateral (
        select e.*
        from generate_series(0, g.era) as n (era)
        cross join lateral (
            select e.* from leasehold.recipe_events e
            where e.job_id = g.job_id and e.era = n.era and e.path_hash = $7
              and e.sort = case $8 when 'timer_fired' then 'timer_set'::leasehold.event_sort
                                   when 'child_ended' then 'child_started'::leasehold.event_sort end
        ) e
        where $8 in ('timer_fired', 'child_ended')
        order by e.era desc limit 1
    ) e
), taken as materialized (
    select s.*
    from log g
    cross join lateral (
        select s.* from leasehold.signals s
        where s.job_id = g.job_id and s.name = $20 and s.taken is null
        order by s.signal_id limit 1
        for no key update
    ) s
    where $8 = 'signal' and not exists (select from standing)
), child as materialized (
    select e.*
    from begun b
    cross join lateral (select e.* from leasehold.ended e where e.job_id = b.child_id) e
    where $8 = 'child_ended'
), made as materialized (
    select g.*,
           case $8 when 'timer_fired' then exists (select from begun) when 'child_ended' then exists (select from begun)
                   else true end as has_begun,
           case $8 when 'timer_fired' then exists (select from begun b where b.deadline <= g.now)
                   when 'signal' then exists (select from taken) when 'child_ended' then exists (select from child)
                   else true end as has_come,
           $21 + coalesce((select octet_length(t.data::text) from taken t), 0)
               + coalesce((select coalesce(octet_length(c.output::text), 0) + coalesce(octet_length(c.failure_code), 0)
                                  + coalesce(octet_length(c.failure_message), 0) from child c), 0) as size
    from log g
    where not exists (select from standing)
), fresh as (
    insert into leasehold.recipe_events (job_id, ordinal, namespace, path, path_hash, sort, era, recorded_at, worker_id,
        epoch, bytes, op, input_hash, attempt, outcome, value, directive, failure_kind, failure_code, failure_message,
        exit_code, deadline, name, signal_id, child_id)
    select m.job_id, m.events + 1, m.namespace, $6, $7, $8::leasehold.event_sort, m.era, m.now, $4, m.epoch, m.size,
           $9, $10, $11, coalesce($12, c.state::text), coalesce($13::text::json, t.data, c.output), $14::text::json,
           coalesce($15::text::leasehold.failure_kind, c.failure_kind), coalesce($16, c.failure_code),
           coalesce($17, c.failure_message), coalesce($18, c.exit_code),
           case $8 when 'timer_set' then m.now + $19 * interval '1 microsecond' end, t.name, t.signal_id, c.job_id
    from made m
    left join taken t on true
    left join child c on true
    where m.has_come and m.events < $22 and m.bytes + m.size <= $23
    returning *
), counted as (
    update leasehold.recipes r set events = f.ordinal, bytes = r.bytes + f.bytes, refusals = 0
    from fresh f
    where r.job_id = f.job_id and r.job_id = $1
), gone as (
    update leasehold.signals s set taken = f.ordinal
    from fresh f
    where s.signal_id = f.signal_id and s.signal_id = any (array(select t.signal_id from taken t))
)
select case when s.standing then 'standing' when e.ordinal is not null then 'recorded' when not m.has_begun then 'not_begun'
            when not m.has_come then 'not_yet' when m.events >= $22 then 'events' else 'bytes' end as verdict,
       null::text as refused, null::text as reason,
       e.ordinal, e.path, e.sort::text, e.op, e.input_hash, e.attempt, e.outcome, e.value::text, e.directive::text,
       e.failure_kind::text, e.failure_code, e.failure_message, e.exit_code, e.deadline, e.name, e.signal_id, e.child_id,
       e.recorded_at, e.worker_id, e.epoch
from log g
left join made m on true
cross join lateral (select exists (select from standing) as standing) s
left join (select * from standing union all select * from fresh) e on true
