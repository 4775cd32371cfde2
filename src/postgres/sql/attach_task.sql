-- attach_task.sql: records the container of a task under a live lease, unless the task is on another node or has another
-- container.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 task   $7 node   $8 container
with held as materialized (
    select l.job_id
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for key share skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
), placed as materialized (
    select t.job_id, t.task, t.node_id, t.container_id
    from held h
    cross join lateral (
        select t.* from leasehold.task_containers t where t.job_id = h.job_id and t.task = $6 for no key update
    ) t
), attached as (
    update leasehold.task_containers t set container_id = $8
    where t.task = $6
      and t.job_id = any (array(select p.job_id from placed p where p.node_id = $7 and p.container_id is null))
)
-- The container in the way, if another one is attached; one that is attached now cannot be seen in this snapshot.
select p.node_id is not distinct from $7 as right_node, nullif(p.container_id, $8) as conflict
from held h
left join placed p on true
