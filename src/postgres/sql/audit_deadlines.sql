-- audit_deadlines.sql: a renewal later than the job's cancel or run deadline extends nothing.
-- $1 as of   $2 seconds of patience   $3 lines at most
select l.namespace, l.job_id,
       format('its lease was renewed %s s after its %s deadline',
              round(extract(epoch from l.lease_expires_at - l.lease_ms * interval '1 ms'
                                       - least(l.cancel_deadline, l.run_deadline)), 1),
              case when l.cancel_deadline <= coalesce(l.run_deadline, l.cancel_deadline) then 'cancel' else 'run' end) as detail,
       'end the worker process that holds it, so that it is recovered, report it' as remedy
from leasehold.leases l
where l.renewals > 0 and isfinite(l.lease_expires_at)
  and l.lease_expires_at - l.lease_ms * interval '1 ms' > least(l.cancel_deadline, l.run_deadline)
order by 2 limit $3
