-- node_claims.sql: what the reaper asks after it has listed: which of these jobs are RUNNING, and by which claim.
-- No row, no answer: the node is another process's or another engine's by now, the fleet is another one, or this
-- server is a standby, which may be behind. A takeover is no claim and leaves claim_epoch as it is.
select l.job_id, l.claim_epoch, l.container_id, t.tasks, t.containers
from leasehold.fleet f
join leasehold.nodes n on n.namespace = $1 and n.node_id = $2 and n.process_id = $3 and n.engine_id = $4
left join leasehold.leases l on l.namespace = n.namespace and l.job_id = any($6)
cross join lateral (
    -- RECIPE: its tasks that have a node, each with its container, if it has one by now.
    select coalesce(array_agg(c.task order by c.task), '{}') as tasks,
           coalesce(array_agg(coalesce(c.container_id, '') order by c.task), '{}') as containers
    from leasehold.task_containers c
    where c.job_id = l.job_id and c.node_id = $2
) t
where f.fleet_id = $5 and not pg_is_in_recovery()
