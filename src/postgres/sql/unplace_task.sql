-- unplace_task.sql: gives the slot of a task back under a live lease: nothing of it runs any more.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 task
with held as materialized (
    select l.job_id
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for key share skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
), containers as (
    delete from leasehold.task_containers t
    where t.task = $6 and t.job_id = any (array(select h.job_id from held h))
), slots as (
    delete from leasehold.node_slots s
    where s.task = $6 and s.job_id = any (array(select h.job_id from held h))
)
select h.job_id from held h
