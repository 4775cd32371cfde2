-- audit_asleep.sql: recipes that wait for a signal that is there, or for a child that has ended.
-- $1 as of   $2 seconds of patience   $3 lines at most
select w.namespace, w.job_id, 'waits for what has come already' as detail,
       format('update leasehold.waiting set due_at = now() where job_id = %s, and report it', w.job_id) as remedy
from leasehold.waiting w
join leasehold.recipes r on r.job_id = w.job_id and r.wake_epoch = w.epoch
where w.held_due_at is null and w.due_at > $1
  and (exists (select from leasehold.signals s
               where s.job_id = w.job_id and s.taken is null and s.name = any (r.wake_signals) and s.sent_at < $1 - interval '10 seconds')
       or exists (select from leasehold.ended e where e.job_id = any (r.wake_children) and e.ended_at < $1 - interval '10 seconds'))
order by 2 limit $3
