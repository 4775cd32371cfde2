-- audit_unplaced.sql: QUEUED CONTAINER jobs for which there is no node.
-- $1 as of   $2 seconds of patience   $3 lines at most
with nodes as materialized (
    select n.namespace, count(*) as known,
           count(*) filter (where n.state = 'READY' and n.heartbeat_at + n.heartbeat_ttl_ms * interval '1 ms' > $1) as usable
    from leasehold.nodes n group by n.namespace
)
select r.namespace, r.job_id,
       format('waits for a node for %s s, and ', round(extract(epoch from $1 - r.due_at)))
           || case when n.known is null then 'none is registered' else format('of %s none is READY and fresh', n.known) end as detail,
       case when n.known is null then 'start `leasehold node` beside a Docker engine'
            else 'see `leasehold node list`, start the agent again, or undrain a node' end as remedy
from leasehold.ready r
left join nodes n on n.namespace = r.namespace
where r.kind = 'CONTAINER' and coalesce(n.usable, 0) = 0 and r.due_at < $1 - $2 * interval '1 second'
order by r.due_at, 2 limit $3
