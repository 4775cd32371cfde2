-- retry_job.sql: reopens a FAILED or CANCELED job as a new attempt with fresh failure counters; what it was is noted.
-- $1 namespace   $2 job
-- RECIPE, else null: $3 from which path   $4 its hash   $5, $6 first and last ordinals of what counts as unfinished
--                    $7 how many events the log has   $8 bytes of the path   $9 most events   $10 most bytes of a log
with log as materialized (
    -- One writer after the other, as for every event.
    select r.* from leasehold.recipes r where r.job_id = $2 and r.namespace = $1 and $3::text is not null
    for no key update
), again as materialized (
    select u.first, u.last from unnest($5::bigint[], $6::bigint[]) as u (first, last)
    union
    -- Children whose end is not recorded, and who will not come to a good one any more.
    select e.ordinal, e.ordinal
    from log g
    cross join lateral (
        select e.* from leasehold.recipe_events e where e.job_id = g.job_id and e.sort = 'child_started'
    ) e
    where not exists (select from leasehold.recipe_events x
                      where x.job_id = e.job_id and x.sort = 'child_ended' and x.child_id = e.child_id)
      and (exists (select from leasehold.ended d where d.job_id = e.child_id and d.state <> 'COMPLETED')
           or exists (select from leasehold.leases l where l.job_id = e.child_id and l.cancel_requested_at is not null)
           or not exists (select from leasehold.jobs j where j.job_id = e.child_id))
), room as materialized (
    select g.*, g.events is distinct from $7 as changed, s.size, g.events >= $9 or g.bytes + s.size > $10 as is_full
    from log g
    cross join lateral (select $8::integer + 16 * count(*)::integer as size from again) s
), was as (
    delete from leasehold.ended e
    where e.job_id = $2 and e.namespace = $1 and e.state in ('FAILED', 'CANCELED')
      and case when $3::text is null then e.kind <> 'RECIPE'
               else exists (select from room r where not r.changed and not r.is_full) end
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
), logged as (
    insert into leasehold.recipe_events (job_id, ordinal, namespace, path, path_hash, sort, era, recorded_at, epoch, bytes,
        value)
    select r.job_id, r.events + 1, r.namespace, $3, $4, 'reopened', r.era + 1, clock_timestamp(), w.epoch, r.size,
           (select coalesce(json_agg(json_build_array(a.first, a.last) order by a.first, a.last), '[]') from again a)
    from room r
    join was w on w.job_id = r.job_id
    returning *
), beside as (
    -- What was published was published for the task that it stood at: it only orders from now on.
    update leasehold.recipes r
    set handoffs = 0, refusals = 0, hint_epoch = null, era = l.era, events = l.ordinal, bytes = r.bytes + l.bytes
    from logged l
    where r.job_id = l.job_id and r.job_id = $2
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
       (select r.kind from leasehold.jobs r where r.job_id = $2 and r.namespace = $1) = 'RECIPE' as is_recipe,
       (select r.changed from room r) as changed, (select r.is_full from room r) as is_full,
       (select count(pg_notify('leasehold_ready', '')) from queued) as told
