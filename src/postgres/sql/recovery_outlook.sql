-- recovery_outlook.sql: how many leases have expired, the oldest expiry, and when the next one comes. Reads only.
-- $1 namespace
-- The clock is the transaction's, not clock_timestamp(): this looks at every lease, and decides nothing.
select count(*) filter (where l.lease_expires_at <= now()) as expired, min(l.lease_expires_at) as oldest,
       (extract(epoch from min(greatest(l.lease_expires_at, l.recovery_not_before, f.recovery_held_until)) filter (
           where greatest(l.lease_expires_at, l.recovery_not_before, f.recovery_held_until) > now()) - now())
           * 1000000)::bigint as next_us,
       now() as clock
-- After a promotion nothing is taken over for a while.
from leasehold.leases l
cross join (select f.recovery_held_until from leasehold.fleet f) f
where l.namespace = $1
