-- audit_overdue.sql: PENDING jobs whose time has come, and which nobody makes QUEUED.
-- $1 as of   $2 seconds of patience   $3 lines at most
select q.namespace, q.job_id, format('is due for %s s and not dispatched', round(extract(epoch from $1 - q.due_at))) as detail,
       'start `leasehold worker` or `dev` for this namespace: each dispatches' as remedy
from leasehold.waiting q
where q.due_at < $1 - $2 * interval '1 second'
order by q.due_at limit $3
