-- audit_containers.sql: a container belongs to one job, which was placed on its node; a CONTAINER job that runs has one.
-- $1 as of   $2 seconds of patience   $3 lines at most
select f.namespace, f.job_id, f.detail,
       'cancel the job, if its container stays, remove it by its label leasehold.job, report it' as remedy
from (
    select c.namespace, c.job_id,
           case when c.kind = 'CONTAINER' and c.node_id is null then 'is a RUNNING CONTAINER job without a node'
                when c.container_id is not null and c.node_id is null then 'has a container and no node'
                when c.holders > 1 then format('shares container %s with another job', left(c.container_id, 12)) end as detail
    from (
        select l.namespace, l.job_id, l.kind, l.node_id, l.container_id,
               case when l.container_id is null then 0 else count(*) over (partition by l.node_engine_id, l.container_id) end as holders
        from (
            select l.namespace, l.job_id, l.kind, l.node_id, l.node_engine_id, l.container_id from leasehold.leases l
            union all
            select t.namespace, t.job_id, 'RECIPE', t.node_id, t.node_engine_id, t.container_id
            from leasehold.task_containers t
        ) l
    ) c
) f
where f.detail is not null
order by 2 limit $3
