-- recovery_outlook.sql: how many leases have expired, the oldest expiry, and when the next look is due. Reads only.
-- $1 namespace
-- This reads every lease, so it costs as little a row as can be: one comparison with a value that is computed once. What
-- expires later than in 15 s is not looked at more closely; where nothing expires before that, the next look is due then.
select count(*) filter (where l.lease_expires_at <= now()) as expired, min(l.lease_expires_at) as oldest,
       -- After a promotion nothing is taken over for a while.
       (extract(epoch from min(greatest(l.lease_expires_at, l.recovery_not_before, (select f.recovery_held_until from leasehold.fleet f))) filter (
           where greatest(l.lease_expires_at, l.recovery_not_before, (select f.recovery_held_until from leasehold.fleet f)) > now())
           - now()) * 1000000)::bigint as next_us,
       now() as clock,
       exists (select from leasehold.leases o where o.lease_expires_at > now() and o.namespace = $1) as ahead
from leasehold.leases l
where l.lease_expires_at <= (select now() + interval '15 seconds') and l.namespace = $1
  -- What is no time was written by hand: nobody can say when its holder must have stopped. (`doctor --audit` names it.)
  and l.lease_expires_at <> '-infinity'
