-- audit_blocked.sql: jobs that wait for another run are looked at again within 5 seconds, whatever becomes of that run.
-- $1 as of   $2 seconds of patience   $3 lines at most
select q.namespace, q.job_id,
       format('waits for job %s, which %s, and its next look is %s s away', q.blocked_by,
              case when s.state is null then 'does not exist' when s.state in ('COMPLETED', 'FAILED', 'CANCELED') then 'has ended' else 'is ' || s.state end,
              round(extract(epoch from q.due_at - $1))) as detail,
       format('update leasehold.waiting set due_at = now() where job_id = %s, and report it', q.job_id) as remedy
from leasehold.waiting q
left join leasehold.job_states s on s.job_id = q.blocked_by
where q.blocked_by is not null and q.held_due_at is null and isfinite(q.due_at) and q.due_at > $1 + interval '10 seconds'
order by 2 limit $3
