-- redeem.sql: puts a new token in the place of a live lease's, which from then on proves nothing. The repeat of the
-- command finds the new one in place.
-- $1 job   $2 token   $3 namespace   $4 worker   $5 process   $6 command   $7 new token   $8 hash of the request
with held as materialized (
    select l.job_id, l.epoch, l.lease_expires_at, l.token = $7 as again
    from (select $1::bigint as job_id) a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for no key update skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at, $3,
              case when exists (
                       select from leasehold.commands c
                       where c.command_id = $6 and c.operation = 'redeem' and c.request_hash = $8)
                   then $7 else $2 end, $4, $5)
), redeemed as (
    update leasehold.leases l set token = $7
    where l.job_id = any (array(select h.job_id from held h where not h.again))
), recorded as (
    -- Not "on conflict": a command id that stands for something else must undo the above.
    insert into leasehold.commands (command_id, namespace, operation, request_hash, jobs, epochs)
    select $6, $3, 'redeem', $8, array[h.job_id], array[h.epoch] from held h where not h.again
)
select (extract(epoch from h.lease_expires_at - clock_timestamp()) * 1000000)::bigint as remaining_us from held h
