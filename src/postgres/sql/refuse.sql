-- refuse.sql: records under a live lease that the job's execution payload was refused; twice under one lease is once.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 why
with held as materialized (
    select l.job_id, l.epoch
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for key share skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
)
update leasehold.recipes r
set refusals = r.refusals + (r.refused_epoch is distinct from h.epoch)::integer, refused_epoch = h.epoch, refusal = $6,
    refused_at = clock_timestamp()
from held h
where r.job_id = h.job_id and r.job_id = $1
returning r.refusals
