-- postpone_recovery.sql: gives a live lease up whose cleanup cannot be done now: it expires, and nobody takes it over for
-- a while. Container, node and slots stay the job's.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 for how many ms
with held as materialized (
    select l.job_id
    from (select $1::bigint as job_id) a
    cross join lateral (
        select l.* from leasehold.leases l where l.job_id = a.job_id for no key update skip locked
    ) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
)
update leasehold.leases l
set lease_expires_at = clock_timestamp(),
    recovery_not_before = clock_timestamp() + $6 * interval '1 millisecond',
    cleanup_pending_since = coalesce(l.cleanup_pending_since, clock_timestamp())
where l.job_id = any (array(select h.job_id from held h))
returning l.job_id
