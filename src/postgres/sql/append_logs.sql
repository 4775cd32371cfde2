-- append_logs.sql: stores output under a live lease; what is stored already is not stored twice. Output belongs to the
-- claim: whoever took the job over goes on under the claim's epoch.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 streams   $7 first bytes   $8 data
-- $9 tasks
with held as materialized (
    -- In key share mode: renewals go on meanwhile, an end or a takeover waits for us.
    select l.job_id, l.claim_epoch
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for key share skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $3, $2, $4, $5)
), stored as (
    insert into leasehold.job_logs (job_id, task, epoch, stream, first_byte, namespace, data)
    select h.job_id, b.task, h.claim_epoch, b.stream, b.first_byte, $3, b.data
    from held h
    cross join unnest($6::smallint[], $7::bigint[], $8::bytea[], $9::text[])
        with ordinality as b (stream, first_byte, data, task, n)
    order by b.n
    on conflict do nothing
)
select 1 as live from held
