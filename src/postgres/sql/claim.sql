-- claim.sql: grants QUEUED jobs under a lease: the next ones of some routes, or exactly the listed ones.
-- $1 namespace
-- Requests:  $2 commands  $3 workers  $4 processes  $5 lease durations in ms  $6 request hashes  $7 operations
--            $8 recorded even when nothing is granted
-- Open:      $9 kinds, $10 routes, $11 tasks, and where to begin looking in each: $12 ranks, $13 due times, $14 jobs
--            $15 tokens, one for each job that may be granted   $16 the request that each token is for
-- Listed:    $17 jobs, $18 generations, $19 dispatch attempts as believed   $20 tokens   $21 requests
-- $22 whether a CONTAINER job may be among them
-- RECIPE, open: versions known, from and to: $23, $24 of the language, $25, $26 of the payload's key `execution`;
--               what the worker has: $27 cpu  $28 memory  $29 storage  $30 os  $31 architecture  $32 variant  $33 image
--               $34 image digest
with routes as materialized (
    select u.kind::leasehold.job_kind as kind, u.route, u.task, u.from_rank, u.from_due, u.from_job, u.n
    from unnest($9::text[], $10::text[], $11::text[], $12::smallint[], $13::timestamptz[], $14::bigint[])
        with ordinality as u (kind, route, task, from_rank, from_due, from_job, n)
), wanted as materialized (
    select cardinality($15::uuid[]) as open, cardinality($15::uuid[]) + cardinality($17::bigint[]) as most
), free as materialized (
    -- Free slots of fresh READY nodes, the least loaded first; at random among equals and within a node, so that
    -- concurrent claims seldom want the same one. Whoever gets it is decided by the slot's key, below.
    select row_number() over (order by s.load, s.chance) as n, s.node_id, s.incarnation, s.endpoint, s.engine_id, s.slot
    from (
        select f.*, g.slot, f.used + row_number() over (partition by f.node_id order by g.chance) as load, random() as chance
        from (
            select nd.node_id, nd.incarnation, nd.endpoint, nd.engine_id, nd.max_concurrency, u.used
            from leasehold.nodes nd
            cross join lateral (
                select count(*) as used from leasehold.node_slots ns
                where ns.namespace = nd.namespace and ns.node_id = nd.node_id
            ) u
            where $22 and nd.namespace = $1 and nd.state = 'READY' and u.used < nd.max_concurrency
              and nd.heartbeat_at + nd.heartbeat_ttl_ms * interval '1 millisecond' > clock_timestamp()
            order by u.used, random()
            limit (select w.most from wanted w)
        ) f
        cross join lateral (
            select g.slot, random() as chance from generate_series(1, f.max_concurrency) as g (slot)
            where not exists (
                select from leasehold.node_slots ns
                where ns.namespace = $1 and ns.node_id = f.node_id and ns.slot = g.slot)
            order by chance
            -- Not more than are free in all: a node that came back with fewer slots may have jobs in higher ones.
            limit least((select w.most from wanted w), f.max_concurrency - f.used)
        ) g
    ) s
    order by s.load, s.chance
    limit (select w.most from wanted w)
), shares as materialized (
    -- With several routes: how many of the most urgent jobs are whose. Without locks, so that no more rows are
    -- locked than are taken.
    select u.*, case when (select count(*) from routes) = 1 then (select w.open from wanted w)
                     else count(h.job_id) end as share
    from routes u
    left join (
        select u.n, r.job_id
        from routes u
        cross join lateral (
            select r.rank, r.due_at, r.job_id from leasehold.ready r
            where r.namespace = $1 and r.kind = u.kind and r.route = u.route and r.task = u.task
              and (r.rank, r.due_at, r.job_id) >= (u.from_rank, u.from_due, u.from_job)
              and (r.workflow = 'adhoc' or exists (
                  select from leasehold.workflows w
                  where w.namespace = r.namespace and w.name = r.workflow and w.state = 'ACTIVE'
                    and (w.generation = r.generation or r.kind = 'RECIPE' and r.attempt > 0)))
              and (u.kind <> 'RECIPE' or exists (
                  select from leasehold.recipes p
                  where p.job_id = r.job_id and p.language between $23 and $24
                    and (p.execution_version is null or p.execution_version between $25 and $26)
                    and ((p.cpu_millis is null or p.cpu_millis <= $27)
                         and (p.memory_bytes is null or p.memory_bytes <= $28)
                         and (p.ephemeral_storage_bytes is null or p.ephemeral_storage_bytes <= $29)
                         and (p.os is null or p.os = $30 and p.architecture = $31
                                              and (p.variant is null or p.variant = $32))
                         and (p.image_reference is null or p.image_reference = $33)
                         and (p.image_digest is null or p.image_digest = $34)
                         or p.hint_epoch is distinct from r.epoch
                            and r.due_at <= clock_timestamp() - interval '5 seconds')))
            order by r.rank, r.due_at, r.job_id
            limit case when u.kind = 'CONTAINER' then least((select w.open from wanted w), (select count(*) from free))
                       else (select w.open from wanted w) end
        ) r
        where (select count(*) from routes) > 1
        order by r.rank, r.due_at, r.job_id
        limit (select w.open from wanted w)
    ) h on h.n = u.n
    group by u.kind, u.route, u.task, u.from_rank, u.from_due, u.from_job, u.n
), picked as materialized (
    -- A row of `ready` never changes while it stands there: what is locked is what was read.
    select r.*, null::integer as ask, null::uuid as token
    from shares u
    cross join lateral (
        select r.ctid as at, r.* from leasehold.ready r
        where r.namespace = $1 and r.kind = u.kind and r.route = u.route and r.task = u.task
          and (r.rank, r.due_at, r.job_id) >= (u.from_rank, u.from_due, u.from_job)
          -- What a workflow has left behind is not in anybody's way. A recipe that was claimed once is in flight, under
          -- the definition that it was submitted with: an edit leaves it alone.
          and (r.workflow = 'adhoc' or exists (
              select from leasehold.workflows w
              where w.namespace = r.namespace and w.name = r.workflow and w.state = 'ACTIVE'
                and (w.generation = r.generation or r.kind = 'RECIPE' and r.attempt > 0)))
          -- A recipe whose published needs the worker does not fit is left to others: for good while the hint is exact,
          -- else for 5 s. (Its row beside was written no later than the row here.)
          and (u.kind <> 'RECIPE' or exists (
              select from leasehold.recipes p
              where p.job_id = r.job_id and p.language between $23 and $24
                and (p.execution_version is null or p.execution_version between $25 and $26)
                and ((p.cpu_millis is null or p.cpu_millis <= $27)
                     and (p.memory_bytes is null or p.memory_bytes <= $28)
                     and (p.ephemeral_storage_bytes is null or p.ephemeral_storage_bytes <= $29)
                     and (p.os is null or p.os = $30 and p.architecture = $31
                                          and (p.variant is null or p.variant = $32))
                     and (p.image_reference is null or p.image_reference = $33)
                     and (p.image_digest is null or p.image_digest = $34)
                     or p.hint_epoch is distinct from r.epoch
                        and r.due_at <= clock_timestamp() - interval '5 seconds')))
        order by r.rank, r.due_at, r.job_id
        limit case when u.kind = 'CONTAINER' then least(u.share, (select count(*) from free)) else u.share end
        for update skip locked
    ) r
    union all
    select r.*, b.ask, b.token
    from unnest($17::bigint[], $18::bigint[], $19::integer[], $20::uuid[], $21::integer[])
        as b (job_id, generation, dispatch_attempt, token, ask)
    cross join lateral (
        select r.ctid as at, r.* from leasehold.ready r
        where r.job_id = b.job_id and r.namespace = $1
          and r.generation = b.generation
          and r.dispatch_attempt = b.dispatch_attempt
        for update skip locked
    ) r
), flows as materialized (
    -- A change of generation, a pause or a terminate holds its workflow's row: jobs of such a one are left alone.
    select w.*
    from (select distinct p.workflow from picked p where p.workflow <> 'adhoc' order by 1) d
    cross join lateral (
        select w.name, w.generation, w.state, w.overlap_limit, w.overlap_serial from leasehold.workflows w
        where w.namespace = $1 and w.name = d.workflow
        for share skip locked
    ) w
), gates as materialized (
    -- For each workflow with an overlap policy: who is in the way.
    select f.name, f.overlap_serial, f.overlap_limit, b.running, b.taken, s.first
    from flows f
    cross join lateral (
        select min(ws.job_id) as running, count(*) as taken from leasehold.workflow_slots ws
        where ws.namespace = $1 and ws.workflow = f.name
    ) b
    cross join lateral (
        select least(
            (select x.job_id from leasehold.waiting x where x.namespace = $1 and x.workflow = f.name
                and x.overlap_limit is not null order by x.job_id limit 1),
            (select x.job_id from leasehold.ready x where x.namespace = $1 and x.workflow = f.name
                and x.overlap_limit is not null order by x.job_id limit 1),
            (select x.job_id from leasehold.leases x where x.namespace = $1 and x.workflow = f.name
                and x.overlap_limit is not null order by x.job_id limit 1)) as first
    ) s
    where f.overlap_limit is not null
), openings as materialized (
    select g.name, o.slot, row_number() over (partition by g.name order by o.chance) as n
    from gates g
    cross join lateral (
        select s.slot, random() as chance from generate_series(1, g.overlap_limit) as s (slot)
        where not exists (
            select from leasehold.workflow_slots ws
            where ws.namespace = $1 and ws.workflow = g.name and ws.slot = s.slot)
        limit (select w.most from wanted w)
    ) o
), special as materialized (
    -- Jobs whose claim depends on other rows; in the order in which they are let in. `blocker`: must wait for it.
    select l.job_id, l.kind, l.workflow, l.at, l.limited, o.slot,
           case when l.overlap_serial and l.first < l.job_id then l.first
                when l.limited and o.slot is null then l.running end as blocker
    from (
        select p.job_id, p.kind, p.workflow, p.at, g.name is not null as limited, g.overlap_serial, g.first, g.running,
               row_number() over (partition by p.workflow, g.overlap_serial and g.first < p.job_id
                                  order by p.rank, p.due_at, p.job_id) as line
        from picked p
        left join flows f on f.name = p.workflow
        left join gates g on g.name = p.workflow
        where (p.workflow <> 'adhoc' or p.kind = 'CONTAINER')
          and (p.workflow = 'adhoc' or f.state = 'ACTIVE' and (f.generation = p.generation
                                                              or p.kind = 'RECIPE' and p.attempt > 0))
    ) l
    left join openings o on o.name = l.workflow and o.n = l.line
), placements as materialized (
    select c.job_id, f.node_id, f.incarnation, f.endpoint, f.engine_id, f.slot
    from (
        select s.job_id, row_number() over (order by p.rank, p.due_at, p.job_id) as n
        from special s join picked p on p.job_id = s.job_id
        where s.kind = 'CONTAINER' and s.blocker is null and (not s.limited or s.slot is not null)
    ) c
    join free f on f.n = c.n
), node_slots as (
    insert into leasehold.node_slots (namespace, node_id, slot, job_id)
    select $1, p.node_id, p.slot, p.job_id from placements p order by p.node_id, p.slot
    on conflict do nothing
    returning job_id
), admitted as materialized (
    select s.job_id, s.kind, s.workflow, s.limited, s.slot
    from special s
    where s.blocker is null and (not s.limited or s.slot is not null)
      and (s.kind <> 'CONTAINER' or s.job_id in (select n.job_id from node_slots n))
), run_slots as (
    insert into leasehold.workflow_slots (namespace, workflow, slot, job_id)
    select $1, a.workflow, a.slot, a.job_id from admitted a
    where a.limited and a.kind <> 'CONTAINER' order by a.workflow, a.slot
    on conflict do nothing
    returning job_id
), placed_run_slots as (
    -- A job that has taken a node's slot cannot give it back in this statement: losing here fails the whole of it,
    -- and it is asked again.
    insert into leasehold.workflow_slots (namespace, workflow, slot, job_id)
    select $1, a.workflow, a.slot, a.job_id from admitted a
    where a.limited and a.kind = 'CONTAINER' order by a.workflow, a.slot
    returning job_id
), let_in as materialized (
    select a.job_id from admitted a
    where not a.limited or a.job_id in (select r.job_id from run_slots r)
       or a.job_id in (select r.job_id from placed_run_slots r)
), granted as materialized (
    select o.*, coalesce(o.token, ($15::uuid[])[o.n::integer]) as new_token,
           coalesce(o.ask, ($16::integer[])[o.n::integer]) as request
    from (
        select p.*, row_number() over (partition by p.ask is null order by p.rank, p.due_at, p.job_id) as n
        from picked p
        where (p.workflow = 'adhoc' and p.kind <> 'CONTAINER') or p.job_id in (select l.job_id from let_in l)
    ) o
), held_back as materialized (
    select p.*, s.blocker from special s join picked p on p.job_id = s.job_id where s.blocker is not null
), gone as (
    delete from leasehold.ready r
    where r.ctid = any (array(select g.at from granted g union all select h.at from held_back h))
), waiting as (
    insert into leasehold.waiting (job_id, namespace, due_at, blocked_by, keep_attempt, kind, route, task, workflow,
        overlap_limit, rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system,
        failures_timeout, losses)
    select h.job_id, h.namespace, clock_timestamp() + interval '5 seconds', h.blocker, h.keep_attempt, h.kind, h.route,
           h.task, h.workflow, h.overlap_limit, h.rank, h.generation, h.dispatch_attempt, h.attempt, h.epoch,
           h.failures_user, h.failures_system, h.failures_timeout, h.losses
    from held_back h
), leased as materialized (
    select g.*, t.now, greatest(g.epoch, f.cluster_generation << 40) + 1 as new_epoch,
           g.attempt + case when g.keep_attempt then 0 else 1 end as new_attempt,
           ($5::integer[])[g.request] as lease_ms, ($3::text[])[g.request] as worker, ($4::uuid[])[g.request] as process,
           p.node_id, p.incarnation, p.endpoint, p.engine_id,
           j.definition, j.payload, j.timeout_ms, j.max_user, j.max_system, j.max_timeout, j.backoff_ms,
           j.backoff_cap_ms, j.trace_parent
    from granted g
    -- Raises an error on a server that the fleet has not met.
    cross join (select leasehold.cluster_generation() as cluster_generation offset 0) f
    cross join lateral (select clock_timestamp() as now) t
    left join placements p on p.job_id = g.job_id
    cross join lateral (
        select j.definition::text as definition, j.payload::text as payload, j.timeout_ms, j.max_user, j.max_system,
               j.max_timeout, j.backoff_ms, j.backoff_cap_ms, j.trace_parent
        from leasehold.jobs j where j.job_id = g.job_id limit 1
    ) j
), grants as (
    insert into leasehold.leases (job_id, lease_expires_at, epoch, claim_epoch, granted_at, token, process_id, lease_ms,
        namespace, worker_id, run_deadline, node_id, node_incarnation, node_endpoint, node_engine_id, kind, route, task,
        workflow, overlap_limit, rank, generation, dispatch_attempt, attempt, failures_user, failures_system,
        failures_timeout, losses)
    select l.job_id, l.now + l.lease_ms * interval '1 millisecond', l.new_epoch, l.new_epoch, l.now, l.new_token,
           l.process, l.lease_ms, l.namespace, l.worker,
           -- The worker ends the work at the timeout; one lease more is for telling us so.
           l.now + (l.timeout_ms + l.lease_ms) * interval '1 millisecond',
           l.node_id, l.incarnation, l.endpoint, l.engine_id, l.kind, l.route, l.task, l.workflow, l.overlap_limit,
           l.rank, l.generation, l.dispatch_attempt, l.new_attempt, l.failures_user, l.failures_system,
           l.failures_timeout, l.losses
    from leased l
), recorded as (
    -- Not "on conflict": a claim whose command id has run already must undo all of the above.
    insert into leasehold.commands (command_id, namespace, operation, request_hash, jobs, epochs)
    select a.command, $1, a.operation, a.hash, coalesce(g.jobs, '{}'), coalesce(g.epochs, '{}')
    from unnest($2::uuid[], $6::text[], $7::text[], $8::boolean[]) with ordinality
        as a (command, hash, operation, always, n)
    left join (
        select l.request, array_agg(l.job_id order by l.n) as jobs, array_agg(l.new_epoch order by l.n) as epochs
        from leased l group by l.request
    ) g on g.request = a.n
    where a.always or g.jobs is not null
)
select l.request, l.job_id, l.new_token as token, l.new_epoch as epoch, l.kind::text, l.route, l.task, l.workflow,
       l.generation, l.dispatch_attempt, l.new_attempt as attempt, l.definition, l.payload, l.timeout_ms, l.max_user,
       l.max_system, l.max_timeout, l.backoff_ms, l.backoff_cap_ms, l.trace_parent, l.node_id, l.incarnation, l.endpoint,
       l.engine_id, l.rank, l.due_at, null::bigint as blocked_by
from leased l
union all
select null, h.job_id, null, null, h.kind::text, h.route, h.task, h.workflow, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null, null, null, h.rank, h.due_at, h.blocker
from held_back h
