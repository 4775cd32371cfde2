-- read_lease.sql: a live lease with all that its execution needs, without changing or locking anything; only the primary
-- may say.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 epoch
select pg_is_in_recovery() as standby,
       exists (select from leasehold.jobs j where j.job_id = $1 and j.namespace = $3) as known, g.*
from (select 1) one
left join lateral (
    -- The columns of a grant, in their order.
    select l.job_id, l.token, l.epoch, l.kind::text, l.route, l.task, l.workflow, l.generation, l.dispatch_attempt,
           l.attempt, j.definition::text, j.payload::text, j.timeout_ms, j.max_user, j.max_system, j.max_timeout,
           j.backoff_ms, j.backoff_cap_ms, j.trace_parent, l.node_id, l.node_incarnation, l.node_endpoint,
           l.node_engine_id, l.lease_ms,
           (extract(epoch from l.lease_expires_at - clock_timestamp()) * 1000000)::bigint as remaining_us,
           -- A run deadline is the timeout and one lease.
           (extract(epoch from l.run_deadline - l.lease_ms * interval '1 millisecond' - clock_timestamp())
               * 1000000)::bigint as timeout_left_us
    from (select l.* from leasehold.leases l where l.job_id = $1 limit 1) l
    cross join lateral (select j.* from leasehold.jobs j where j.job_id = $1 limit 1) j
    where l.epoch = $6
      and leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at, $3, $2, $4, $5)
) g on true
