-- audit_held.sql: jobs that wait for a resume which cannot come, or for no time at all.
-- $1 as of   $2 seconds of patience   $3 lines at most
select q.namespace, q.job_id,
       case when q.held_due_at is null then 'is due never, and nothing holds it'
            else format('is held for workflow %s, which is %s', q.workflow, coalesce(w.state::text, 'gone')) end as detail,
       format('update leasehold.waiting set due_at = coalesce(held_due_at, now()), held_due_at = null where job_id = %s, and report it', q.job_id) as remedy
from leasehold.waiting q
left join leasehold.workflows w on w.namespace = q.namespace and w.name = q.workflow
where case when q.held_due_at is null then q.due_at = 'infinity' else w.state is distinct from 'PAUSED' end
order by 2 limit $3
