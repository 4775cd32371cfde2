-- audit_expired.sql: expired leases that nobody has taken over, although recovery might have.
-- The jobs of a silent or UNHEALTHY node are left until it counts as lost; a cleanup that was put off until its time.
-- $1 as of   $2 seconds of patience   $3 lines at most
select l.namespace, l.job_id,
       format('its lease of epoch %s, held by worker %s, expired %s s ago', l.epoch, l.worker_id,
              round(extract(epoch from $1 - l.lease_expires_at))) as detail,
       'keep a `leasehold worker` running: it takes such leases over, see `leasehold worker list` for why it does not' as remedy
from leasehold.leases l
left join leasehold.nodes n on n.namespace = l.namespace and n.node_id = l.node_id
where l.lease_expires_at < $1 - $2 * interval '1 second' and isfinite(l.lease_expires_at)
  and l.recovery_not_before < $1 - $2 * interval '1 second'
  and (l.node_id is null or n.node_id is null
       or case when n.engine_id is distinct from l.node_engine_id
                   then n.incarnated_at + n.lost_after_ms * interval '1 ms' < $1 - $2 * interval '1 second'
               else n.state <> 'UNHEALTHY' and n.heartbeat_at + n.heartbeat_ttl_ms * interval '1 ms' > $1
                    or least(n.unhealthy_since, n.heartbeat_at) + n.lost_after_ms * interval '1 ms' < $1 - $2 * interval '1 second' end)
order by l.lease_expires_at limit $3
