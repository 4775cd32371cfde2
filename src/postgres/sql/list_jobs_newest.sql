-- list_jobs_newest.sql: one page of jobs, newest first.
-- Each branch walks one state's table by key and stops after a page; only then are the rows fetched. Job ids are
-- unique, so a page never splits rows that share a time.
with page as (
    select job_id from (
        (select job_id from leasehold.waiting
         where namespace = $1 and (cardinality($2::text[]) = 0 or 'PENDING' = any ($2::text[])) and job_id < $3
           and ($4::text is null or kind::text = $4) and ($5::text is null or workflow = $5)
         order by job_id desc limit $6)
        union all
        (select job_id from leasehold.ready
         where namespace = $1 and (cardinality($2::text[]) = 0 or 'QUEUED' = any ($2::text[])) and job_id < $3
           and ($4::text is null or kind::text = $4) and ($5::text is null or workflow = $5)
         order by job_id desc limit $6)
        union all
        (select job_id from leasehold.leases
         where namespace = $1 and (cardinality($2::text[]) = 0 or 'RUNNING' = any ($2::text[])) and job_id < $3
           and ($4::text is null or kind::text = $4) and ($5::text is null or workflow = $5)
         order by job_id desc limit $6)
        union all
        (select job_id from leasehold.ended
         where namespace = $1 and (cardinality($2::text[]) = 0 or 'COMPLETED' = any ($2::text[]))
           and state = 'COMPLETED' and job_id < $3
           and ($4::text is null or kind::text = $4) and ($5::text is null or workflow = $5)
         order by job_id desc limit $6)
        union all
        (select job_id from leasehold.ended
         where namespace = $1 and (cardinality($2::text[]) = 0 or state::text = any ($2::text[]))
           and state <> 'COMPLETED' and job_id < $3
           and ($4::text is null or kind::text = $4) and ($5::text is null or workflow = $5)
         order by job_id desc limit $6)
    ) candidates
    order by job_id desc limit $6
)
select s.job_id, s.namespace, s.state, s.kind::text, s.workflow, s.route, s.priority, s.generation, s.dispatch_attempt,
       s.attempt, s.epoch, s.exit_code, s.due_at, s.blocked_by, s.ended_at, s.lease_expires_at, s.cancel_requested_at,
       s.submitted_at, coalesce(s.worker_id, last.worker_id) as worker_id, coalesce(s.node_id, last.node_id) as node_id,
       coalesce(s.container_id, last.container_id) as container_id, coalesce(s.granted_at, last.granted_at) as granted_at,
       case when s.ended_at is null then last.failure_kind else s.failure_kind end as failure_kind,
       case when s.ended_at is null then last.failure_code else s.failure_code end as failure_code,
       case when s.ended_at is null then last.failure_message else s.failure_message end as failure_message
from page
join leasehold.job_states s using (job_id)
left join lateral (
    select h.worker_id, h.node_id, h.container_id, h.granted_at, f.failure_kind, f.failure_code, f.failure_message
    from leasehold.lease_history h
    -- Why a lease was given back is no failure of the job.
    left join lateral (select h.failure_kind::text, h.failure_code, h.failure_message
                       where h.how in ('failed', 'retrying', 'expired')) f on true
    where h.job_id = page.job_id order by h.epoch desc limit 1
) last on true
order by job_id desc
