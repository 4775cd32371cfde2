-- audit_held.sql: jobs that wait for a resume which cannot come, or for no time at all.
-- $1 as of   $2 seconds of patience   $3 lines at most
select q.namespace, q.job_id,
       case when q.held_due_at is null then 'is due never, and nothing holds it'
            else format('is held for workflow %s, which is %s', q.workflow, coalesce(w.state::text, 'gone')) end as detail,
       format('update leasehold.waiting set due_at = coalesce(held_due_at, now()), held_due_at = null where job_id = %s, and report it', q.job_id) as remedy
from leasehold.waiting q
left join leasehold.workflows w on w.namespace = q.namespace and w.name = q.workflow
left join leasehold.recipes r on r.job_id = q.job_id and r.wake_epoch = q.epoch
where case when q.held_due_at is null
           -- A recipe may wait for signals and children only.
           then q.due_at = 'infinity' and coalesce(cardinality(r.wake_signals), 0) + coalesce(cardinality(r.wake_children), 0) = 0
           else w.state is distinct from 'PAUSED' end
order by 2 limit $3
