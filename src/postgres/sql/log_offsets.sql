-- log_offsets.sql: how much output of a job's latest claim is stored, told to the holder of the live lease only: nobody
-- else stores any more.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 task, or empty
with held as materialized (
    select l.job_id, l.claim_epoch
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for key share skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
)
select h.job_id, coalesce(e.ends[1], 0) as stdout, coalesce(e.ends[2], 0) as stderr, coalesce(e.ends[3], 0) as system
from held h
cross join lateral (
    -- The last batch of each stream, by the primary key.
    select array_agg(s.ends order by s.stream) as ends
    from (
        select k.stream,
               (select o.first_byte + octet_length(o.data) from leasehold.job_logs o
                where o.job_id = h.job_id and o.task = $6 and o.epoch = h.claim_epoch and o.stream = k.stream
                order by o.first_byte desc limit 1) as ends
        from unnest('{1,2,3}'::smallint[]) as k (stream)
    ) s
) e
