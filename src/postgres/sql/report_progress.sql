-- report_progress.sql: replaces a job's progress note under a live lease.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 epoch   $7 the note
with held as materialized (
    select l.job_id, l.lease_expires_at, l.cancel_requested_at
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for key share skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
), noted as (
    insert into leasehold.job_progress (job_id, namespace, epoch, progress)
    select h.job_id, $3, $6, $7::text::json from held h
    on conflict (job_id) do update
    set epoch = excluded.epoch, reported_at = excluded.reported_at, progress = excluded.progress
)
select (extract(epoch from h.lease_expires_at - clock_timestamp()) * 1000000)::bigint as remaining_us,
       h.cancel_requested_at is not null as cancel_requested
from held h
