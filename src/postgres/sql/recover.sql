-- recover.sql: takes expired leases over: each is looked at again with its row held, and gets its own token and epoch.
-- $1 namespace   $2 worker   $3 process   $4 lease duration in ms
-- $5 jobs that may be taken, in the order in which they are wanted   $6 how many at most   $7 a token for each of those
-- $8 command   $9 request hash   $10 recorded even when nothing is taken over   $11 jobs that are left alone
with held as materialized (
    -- One row after the other: lock it, then read the clock. What somebody holds is passed over.
    select l.*, r.runtime_lost, clock_timestamp() as now
    from unnest($5::bigint[]) as c (job_id)
    cross join lateral (select l.* from leasehold.leases l where l.job_id = c.job_id for update skip locked) l
    cross join lateral (
        -- Null: the node has been silent, or UNHEALTHY, but not for long enough.
        select case when l.node_id is null then false
                    when n.node_id is null then true
                    when n.engine_id is distinct from l.node_engine_id then
                        case when n.incarnated_at + n.lost_after_ms * interval '1 millisecond' <= clock_timestamp()
                             then true end
                    when least(n.unhealthy_since, n.heartbeat_at) + n.lost_after_ms * interval '1 millisecond'
                         <= clock_timestamp() then true
                    when n.state = 'UNHEALTHY' then null
                    when n.heartbeat_at + n.heartbeat_ttl_ms * interval '1 millisecond' > clock_timestamp() then false
               end as runtime_lost
        from (select) one
        left join leasehold.nodes n on n.namespace = l.namespace and n.node_id = l.node_id
    ) r
    where l.namespace = $1 and l.lease_expires_at <= clock_timestamp() and l.recovery_not_before <= clock_timestamp()
      and l.lease_expires_at <> '-infinity' and l.job_id <> all ($11::bigint[]) and r.runtime_lost is not null
      -- After a promotion a holder may have renewed where we cannot see it, and clocks may differ.
      and (select f.recovery_held_until <= clock_timestamp() from leasehold.fleet f)
    limit $6
), taken as materialized (
    select h.*, row_number() over (order by h.lease_expires_at, h.job_id) as n,
           greatest(h.epoch, f.cluster_generation << 40) + 1 as new_epoch,
           -- The holder had no fair chance: the database was restarted since the last renewal, or is another one.
           h.loss_excused or (h.epoch >> 40) < f.cluster_generation
               or pg_postmaster_start_time() > h.lease_expires_at - h.lease_ms * interval '1 millisecond' as excused
    from held h
    -- Raises an error on a server that the fleet has not met.
    cross join (select leasehold.cluster_generation() as cluster_generation offset 0) f
), leased as (
    update leasehold.leases l
    set token = ($7::uuid[])[t.n::integer], epoch = t.new_epoch, worker_id = $2, process_id = $3, lease_ms = $4::integer,
        lease_expires_at = t.now + $4::integer * interval '1 millisecond', granted_at = t.now, renewals = 0,
        recovery_not_before = '-infinity', loss_excused = t.excused,
        -- Cleanup has time, whatever the work had.
        cancel_deadline = case when l.cancel_deadline is not null
                               then greatest(l.cancel_deadline, t.now + $4::integer * interval '1 millisecond') end,
        run_deadline = case when l.run_deadline is not null
                            then greatest(l.run_deadline, t.now + $4::integer * interval '1 millisecond') end
    from taken t
    -- By key, whatever the planner thinks of the join.
    where l.job_id = t.job_id and l.job_id = any (array(select t.job_id from taken t))
), past as (
    insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at,
        ended_at, renewals, node_id, container_id)
    select t.job_id, t.epoch, t.namespace, 'expired', t.worker_id, t.process_id, t.attempt, t.granted_at, t.now,
           t.renewals, t.node_id, t.container_id
    from taken t
), recorded as (
    -- Not "on conflict": a recovery whose command id has run already must undo all of the above.
    insert into leasehold.commands (command_id, namespace, operation, request_hash, jobs, epochs)
    select $8, $1, 'recover', $9, coalesce(g.jobs, '{}'), coalesce(g.epochs, '{}')
    from (select array_agg(t.job_id order by t.n) as jobs, array_agg(t.new_epoch order by t.n) as epochs
          from taken t) g
    where $10 or g.jobs is not null
)
select t.job_id, ($7::uuid[])[t.n::integer] as token, t.new_epoch as epoch, t.kind::text, t.route, t.task, t.workflow,
       t.generation, t.dispatch_attempt, t.attempt, j.definition::text, j.payload::text, j.timeout_ms, j.max_user,
       j.max_system, j.max_timeout, j.backoff_ms, j.backoff_cap_ms, j.trace_parent, t.node_id, t.node_incarnation,
       t.node_endpoint, t.node_engine_id, $4::integer as lease_ms, t.container_id, t.runtime_lost, t.claim_epoch,
       t.claim_renewed, t.cancel_requested_at is not null as cancel_requested,
       (extract(epoch from t.now - t.cleanup_pending_since) * 1000000)::bigint as cleanup_pending_us,
       -- A run deadline is the timeout and one lease.
       (extract(epoch from t.run_deadline - $4 * interval '1 millisecond' - t.now) * 1000000)::bigint as timeout_left_us,
       k.tasks
from taken t
cross join lateral (
    -- RECIPE: the tasks that have a node. One that is only silent for now is asked all the same: its engine may answer.
    select json_agg(json_build_object(
               'task', c.task, 'path', c.path, 'epoch', c.epoch, 'node', c.node_id, 'incarnation', c.node_incarnation,
               'endpoint', c.node_endpoint, 'engine', c.node_engine_id, 'container', c.container_id,
               'op', c.op, 'input_hash', c.input_hash, 'attempt', c.attempt, 'secrets', c.secrets,
               'log_quota', c.log_quota_bytes, 'lost', case when n.node_id is null then true
                            when n.engine_id is distinct from c.node_engine_id then
                                n.incarnated_at + n.lost_after_ms * interval '1 millisecond' <= clock_timestamp()
                            else least(n.unhealthy_since, n.heartbeat_at) + n.lost_after_ms * interval '1 millisecond'
                                 <= clock_timestamp() end) order by c.task)::text as tasks
    from leasehold.task_containers c
    left join leasehold.nodes n on n.namespace = c.namespace and n.node_id = c.node_id
    where c.job_id = t.job_id and t.kind = 'RECIPE'
) k
cross join lateral (select j.* from leasehold.jobs j where j.job_id = t.job_id limit 1) j
order by t.n
