-- show_job.sql: one job with its whole story, in one snapshot. Leases and reopenings come as JSON, oldest first.
select s.job_id, s.namespace, s.state, s.kind::text, s.workflow, s.route, s.priority, s.generation, s.dispatch_attempt,
       s.attempt, s.epoch, s.exit_code, s.due_at, s.blocked_by, s.ended_at, s.lease_expires_at, s.cancel_requested_at,
       s.submitted_at, coalesce(s.worker_id, last.worker_id) as worker_id, coalesce(s.node_id, last.node_id) as node_id,
       coalesce(s.container_id, last.container_id) as container_id, coalesce(s.granted_at, last.granted_at) as granted_at,
       case when s.ended_at is null then last.failure_kind else s.failure_kind end as failure_kind,
       case when s.ended_at is null then last.failure_code else s.failure_code end as failure_code,
       case when s.ended_at is null then last.failure_message else s.failure_message end as failure_message,
       s.failures_user, s.failures_system, s.failures_timeout, s.losses, s.output::text,
       j.definition::text, j.payload::text, j.payload_revision, j.timeout_ms, j.trace_parent,
       (select p.progress::text from leasehold.job_progress p where p.job_id = s.job_id) as progress,
       (select coalesce(sum(octet_length(o.data)), 0)::bigint from leasehold.job_logs o where o.job_id = s.job_id) as log_bytes,
       (select coalesce(json_agg(lease order by lease.epoch), '[]')::text from (
            select h.epoch, h.attempt, h.worker_id as worker, h.process_id as process, h.node_id as node,
                   h.container_id as container, h.granted_at, h.ended_at, h.how::text, h.renewals,
                   null::timestamptz as expires_at, h.exit_code,
                   case when h.failure_kind is not null or h.failure_code is not null then json_build_object(
                       'kind', h.failure_kind, 'code', h.failure_code, 'message', h.failure_message) end as failure,
                   h.due_at
            from leasehold.lease_history h where h.job_id = s.job_id
            union all
            select l.epoch, l.attempt, l.worker_id, l.process_id, l.node_id, l.container_id, l.granted_at, null, 'running',
                   l.renewals, case when isfinite(l.lease_expires_at) then l.lease_expires_at end, null, null, null
            from leasehold.leases l where l.job_id = s.job_id
       ) lease) as leases,
       (select coalesce(json_agg(reopened order by reopened.reopened_at), '[]')::text from (
            select o.reopened_at, o.state, o.ended_at, o.attempt, o.exit_code,
                   case when o.failure_kind is not null or o.failure_code is not null then json_build_object(
                       'kind', o.failure_kind, 'code', o.failure_code, 'message', o.failure_message) end as failure
            from leasehold.reopenings o where o.job_id = s.job_id
       ) reopened) as reopened
from leasehold.job_states s
join leasehold.jobs j using (job_id)
left join lateral (
    select h.worker_id, h.node_id, h.container_id, h.granted_at, f.failure_kind, f.failure_code, f.failure_message
    from leasehold.lease_history h
    -- Why a lease was given back is no failure of the job.
    left join lateral (select h.failure_kind::text, h.failure_code, h.failure_message
                       where h.how in ('failed', 'retrying', 'expired')) f on true
    where h.job_id = s.job_id order by h.epoch desc limit 1
) last on true
where s.namespace = $1 and s.job_id = $2
