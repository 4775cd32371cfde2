-- place_task.sql: gives a task of a recipe a free slot of a fresh READY node that has what it needs, the least loaded first,
-- under a live lease. What was placed before is the answer to a repeat. Without a node it is noted with the job when to
-- look again: the longer it has been like that with nothing recorded between, the later.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 task   $7 path   $8 cpu   $9 memory   $10 os
-- $11 architectures, as engines name them   $12 what is needed, in words   its occurrence: $13 op, $14 input hash, $15 attempt,
-- $16 names of secrets, $17 the most bytes of output
with held as materialized (
    -- In key share mode: tasks are placed side by side, renewals go on meanwhile, an end or a takeover waits for us.
    select l.job_id, l.claim_epoch
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for key share skip locked) l
    where l.kind = 'RECIPE'
      and leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
), before as materialized (
    select t.epoch = h.claim_epoch as ours, t.node_id, t.node_incarnation, t.node_endpoint, t.node_engine_id
    from held h
    cross join lateral (
        select t.* from leasehold.task_containers t where t.job_id = h.job_id and t.task = $6 limit 1
    ) t
), free as materialized (
    select f.node_id, f.incarnation, f.endpoint, f.engine_id, g.slot
    from (
        select nd.node_id, nd.incarnation, nd.endpoint, nd.engine_id, nd.max_concurrency, u.used
        from leasehold.nodes nd
        cross join lateral (
            select count(*) as used from leasehold.node_slots ns
            where ns.namespace = nd.namespace and ns.node_id = nd.node_id
        ) u
        where exists (select from held) and not exists (select from before)
          and nd.namespace = $3 and nd.state = 'READY' and u.used < nd.max_concurrency
          and nd.heartbeat_at + nd.heartbeat_ttl_ms * interval '1 millisecond' > clock_timestamp()
          and nd.cpu_millis >= coalesce($8::bigint, 0) and nd.memory_bytes >= coalesce($9::bigint, 0)
          and ($10::text is null or lower(nd.os) = $10 and lower(nd.architecture) = any ($11::text[]))
        order by u.used, random()
        limit 1
    ) f
    cross join lateral (
        -- At random, so that those who ask at once seldom want the same one; its key decides.
        select g.slot from generate_series(1, f.max_concurrency) as g (slot)
        where not exists (
            select from leasehold.node_slots ns
            where ns.namespace = $3 and ns.node_id = f.node_id and ns.slot = g.slot)
        order by random() limit 1
    ) g
), slot as (
    insert into leasehold.node_slots (namespace, node_id, slot, job_id, task)
    select $3, f.node_id, f.slot, h.job_id, $6 from free f cross join held h
    on conflict do nothing
    returning node_id
), placed as (
    insert into leasehold.task_containers (job_id, task, namespace, path, epoch, node_id, node_incarnation, node_endpoint,
        node_engine_id, op, input_hash, attempt, secrets, log_quota_bytes)
    select h.job_id, $6, $3, $7, h.claim_epoch, f.node_id, f.incarnation, f.endpoint, f.engine_id, $13, $14, $15, $16, $17
    from held h cross join free f join slot s on s.node_id = f.node_id
), noted as (
    update leasehold.recipes r
    set unplaced_since = case when r.unplaced_at = r.events then r.unplaced_since else clock_timestamp() end,
        unplaced_at = r.events, unplaced = $12
    from held h
    where r.job_id = h.job_id and not exists (select from before) and not exists (select from free)
    returning r.unplaced_since
), forgotten as (
    update leasehold.recipes r set unplaced_since = null, unplaced_at = null, unplaced = null
    from held h
    where r.job_id = h.job_id and r.unplaced_since is not null and exists (select from slot)
), later as (
    -- From a second to half a minute, and not everybody at once.
    select least(greatest(extract(epoch from clock_timestamp() - n.unplaced_since), 1), 30) * (0.8 + random() * 0.4) as seconds
    from noted n
)
select h.job_id, b.ours as placed_before, exists (select from slot) as placed_now, exists (select from free) as found,
       coalesce(b.node_id, f.node_id) as node_id, coalesce(b.node_incarnation, f.incarnation) as node_incarnation,
       coalesce(b.node_endpoint, f.endpoint) as node_endpoint, coalesce(b.node_engine_id, f.engine_id) as node_engine_id,
       (w.seconds * 1000000)::bigint as retry_in_us, clock_timestamp() + w.seconds * interval '1 second' as retry_at
from held h
left join before b on true
left join free f on true
left join later w on true
