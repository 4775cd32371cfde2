-- reconcile.sql: tells what became of a grant, without changing or locking anything; only the primary may say.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process
select pg_is_in_recovery() as standby,
       l.job_id is not null as recorded,
       coalesce((extract(epoch from l.lease_expires_at - clock_timestamp()) * 1000000)::bigint, 0) as remaining_us
from (select 1) one
left join leasehold.leases l
    on l.job_id = $1 and l.token = $2 and l.namespace = $3 and l.worker_id = $4 and l.process_id = $5
