-- recovery_outlook.sql: how many leases have expired, the oldest expiry, and when the next one comes. Reads only.
-- $1 namespace
-- The clock is the transaction's, not clock_timestamp(): this looks at every lease, and decides nothing.
select count(*) filter (where l.lease_expires_at <= now()) as expired, min(l.lease_expires_at) as oldest,
       (extract(epoch from min(greatest(l.lease_expires_at, l.recovery_not_before)) filter (
           where l.lease_expires_at > now() or l.recovery_not_before > now()) - now()) * 1000000)::bigint as next_us,
       now() as clock
from leasehold.leases l
where l.namespace = $1
