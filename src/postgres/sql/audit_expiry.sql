-- audit_expiry.sql: leases that expire at no time, or later than any renewal can have said: recovery waits for them in vain.
-- $1 as of   $2 seconds of patience   $3 lines at most
select l.namespace, l.job_id,
       case when isfinite(l.lease_expires_at)
            then format('its lease expires in %s s, and it lasts %s s',
                        round(extract(epoch from l.lease_expires_at - greatest($1, clock_timestamp()))),
                        round(l.lease_ms / 1000.0, 1))
            else format('its lease expires at %s, which is no time', l.lease_expires_at) end as detail,
       format('update leasehold.leases set lease_expires_at = now() + lease_ms * interval ''1 ms'' where job_id = %s, '
              'and report it: no statement of ours does this', l.job_id) as remedy
from leasehold.leases l
where case when isfinite(l.lease_expires_at)
           -- Renewed since this audit began, or by a server whose clock was ahead a little before a failover.
           then l.lease_expires_at > greatest($1, clock_timestamp()) + l.lease_ms * interval '1 ms' + greatest($2, 60) * interval '1 second'
           else true end
order by 2 limit $3
