-- recovery_candidates.sql: expired leases that may be taken over as far as can be told without holding their rows, the
-- oldest first. Reads only: each is looked at again when its row is held.
-- $1 namespace   $2 jobs that are not asked for   $3 how many at most
select l.job_id, l.lease_expires_at
from leasehold.leases l
left join leasehold.nodes n on n.namespace = l.namespace and n.node_id = l.node_id
-- What is computed once is compared first: this reads every lease.
where l.lease_expires_at <= (select now()) and l.recovery_not_before <= (select now()) and l.namespace = $1
  and l.job_id <> all ($2::bigint[])
  -- What is no time was written by hand: see the outlook.
  and l.lease_expires_at <> '-infinity'
  and (select f.recovery_held_until <= now() from leasehold.fleet f)
  -- Of a node that has been silent, or UNHEALTHY, for less than its time, they are left for later.
  and (l.node_id is null or n.node_id is null
       or case when n.engine_id is distinct from l.node_engine_id
               then n.incarnated_at + n.lost_after_ms * interval '1 millisecond' <= now()
               else n.state <> 'UNHEALTHY' and n.heartbeat_at + n.heartbeat_ttl_ms * interval '1 millisecond' > now()
                    or least(n.unhealthy_since, n.heartbeat_at) + n.lost_after_ms * interval '1 millisecond' <= now() end)
order by l.lease_expires_at, l.job_id
limit $3
