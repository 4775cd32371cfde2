-- why_job.sql: the facts from which `job why` makes its one sentence.
select s.state, s.kind::text, s.route, s.workflow, s.generation, s.attempt, s.priority, s.due_at, s.held_due_at, s.blocked_by,
       s.worker_id, s.node_id, s.granted_at, s.lease_expires_at, s.cancel_requested_at, s.ended_at, s.failure_code,
       w.state::text as workflow_state, w.generation as workflow_generation, w.overlap_serial, w.overlap_limit,
       last.how::text as last_how, last.failure_kind::text as last_kind, last.failure_code as last_code,
       cleanup.cleanup_pending_since, cleanup.recovery_not_before,
       s.due_at <= now.clock as due, s.lease_expires_at <= now.clock as expired,
       extract(epoch from s.due_at - now.clock)::float8 as due_in_seconds,
       (select count(*) from leasehold.nodes n where n.namespace = $1) as nodes,
       (select count(*) from leasehold.nodes n where n.namespace = $1 and n.state = 'READY'
           and n.heartbeat_at + n.heartbeat_ttl_ms * interval '1 ms' > now.clock) as usable_nodes,
       (select coalesce(sum(n.max_concurrency - (select count(*) from leasehold.node_slots x
            where x.namespace = $1 and x.node_id = n.node_id)), 0)::bigint
        from leasehold.nodes n where n.namespace = $1 and n.state = 'READY'
           and n.heartbeat_at + n.heartbeat_ttl_ms * interval '1 ms' > now.clock) as free_slots,
       alive.workers, alive.serving, alive.free_permits, alive.allocations, route.task,
       (select count(*) from (
            select 1 from leasehold.ready a join leasehold.ready me on me.job_id = $2
            where a.namespace = $1 and a.kind = me.kind and a.route = me.route and a.task = me.task
              and (a.rank, a.due_at, a.job_id) < (me.rank, me.due_at, me.job_id)
            limit 10000) ahead) as ahead,
       p.language, p.execution_version, p.wake_epoch = s.epoch as waits, p.wake_signals, p.wake_children,
       p.published_at is not null as published, p.hint_epoch = s.epoch as exact, p.cpu_millis, p.memory_bytes,
       p.ephemeral_storage_bytes, p.os, p.architecture, p.variant, p.image_reference, p.image_digest, p.declined,
       case when p.job_id is not null then (select j.payload::text from leasehold.jobs j where j.job_id = s.job_id) end as payload,
       p.refusals, p.refusal, case when p.unplaced_at = p.events then p.unplaced end as unplaced
from leasehold.job_states s
cross join (select clock_timestamp() as clock) now
cross join lateral (
    -- RECIPE: the op that a worker must have for its next task.
    select coalesce((select r.task from leasehold.ready r where r.job_id = s.job_id),
                    (select w.task from leasehold.waiting w where w.job_id = s.job_id), '') as task
) route
cross join lateral (
    -- What workers say of themselves, for people only; a worker that names no routes may serve any.
    select count(*) as workers, count(*) filter (where k.serves) as serving,
           coalesce(sum((k.words->'permits'->>'free')::bigint) filter (where k.serves), 0)::bigint as free_permits,
           coalesce(json_agg(json_build_object('worker', k.worker_id, 'allocation', k.words->'allocation')
                             order by k.worker_id) filter (where k.serves and s.kind = 'RECIPE'), '[]')::text as allocations
    from (
        select k.worker_id, k.status::jsonb as words,
               coalesce(k.status::jsonb->'routes' ? rtrim(s.kind || ' ' || s.route || ' ' || route.task), true) as serves
        from leasehold.workers k
        where k.namespace = $1 and k.stopped_at is null and k.seen_at > now.clock - interval '30 seconds'
    ) k
) alive
left join lateral (
    -- Only where it was given up for now: otherwise `recovery_not_before` says nothing.
    select l.cleanup_pending_since, l.recovery_not_before from leasehold.leases l
    where l.job_id = s.job_id and l.cleanup_pending_since is not null and l.recovery_not_before > '-infinity'
) cleanup on true
left join leasehold.recipes p on p.job_id = s.job_id
left join leasehold.workflows w on w.namespace = s.namespace and w.name = s.workflow
left join lateral (
    select h.how, h.failure_kind, h.failure_code from leasehold.lease_history h
    where h.job_id = s.job_id order by h.epoch desc limit 1
) last on true
where s.namespace = $1 and s.job_id = $2
