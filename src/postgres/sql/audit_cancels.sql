-- audit_cancels.sql: RUNNING jobs that should have been stopped by now.
-- $1 as of   $2 seconds of patience   $3 lines at most
select l.namespace, l.job_id,
       format('is RUNNING %s s after its %s deadline', round(extract(epoch from $1 - least(l.cancel_deadline, l.run_deadline))),
              case when l.cancel_deadline <= coalesce(l.run_deadline, l.cancel_deadline) then 'cancel' else 'run' end) as detail,
       format('its holder, worker %s, should have stopped it: see its log, and end the process if it does not answer', l.worker_id) as remedy
from leasehold.leases l
where least(l.cancel_deadline, l.run_deadline) < $1 - l.lease_ms * interval '1 ms' - $2 * interval '1 second'
order by 2 limit $3
