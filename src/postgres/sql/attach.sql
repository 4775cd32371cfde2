-- attach.sql: records the container of a live lease, unless it was placed on another node or has another container.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 node   $7 container
with held as materialized (
    select l.job_id, l.node_id, l.container_id
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for no key update skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
), attached as (
    update leasehold.leases l set container_id = $7
    where l.job_id = any (array(select h.job_id from held h where h.node_id = $6 and h.container_id is null))
)
-- The container in the way, if another one is attached; one that is attached now cannot be seen in this snapshot.
select h.node_id is not distinct from $6 as right_node, nullif(h.container_id, $7) as conflict
from held h
