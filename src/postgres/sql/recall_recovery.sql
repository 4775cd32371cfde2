-- recall_recovery.sql: the repeat of a recovery is that recovery: whether it has run, and which of its takeovers are
-- still live.
-- $1 command   $2 namespace   $3 worker   $4 process
select c.operation, c.request_hash, c.namespace = $2 as ours, g.*
from leasehold.commands c
left join lateral (
    select l.job_id, l.token, l.epoch, l.kind::text, l.route, l.task, l.workflow, l.generation, l.dispatch_attempt,
           l.attempt, j.definition::text, j.payload::text, j.timeout_ms, j.max_user, j.max_system, j.max_timeout,
           j.backoff_ms, j.backoff_cap_ms, j.trace_parent, l.node_id, l.node_incarnation, l.node_endpoint,
           l.node_engine_id, l.lease_ms, l.container_id,
           l.node_id is not null and (
               n.node_id is null or n.engine_id is distinct from l.node_engine_id
               or least(n.unhealthy_since, n.heartbeat_at) + n.lost_after_ms * interval '1 millisecond'
                  <= clock_timestamp()) as runtime_lost,
           l.claim_epoch, l.claim_renewed, l.cancel_requested_at is not null as cancel_requested,
           (extract(epoch from clock_timestamp() - l.cleanup_pending_since) * 1000000)::bigint as cleanup_pending_us,
           (extract(epoch from l.run_deadline - l.lease_ms * interval '1 millisecond' - clock_timestamp()) * 1000000)::bigint
               as timeout_left_us,
           k.tasks
    from unnest(c.jobs, c.epochs) with ordinality as r (job_id, epoch, n)
    cross join lateral (select l.* from leasehold.leases l where l.job_id = r.job_id limit 1) l
    cross join lateral (select j.* from leasehold.jobs j where j.job_id = r.job_id limit 1) j
    left join leasehold.nodes n on n.namespace = l.namespace and n.node_id = l.node_id
    cross join lateral (
    -- RECIPE: the tasks that have a node. One that is only silent for now is asked all the same: its engine may answer.
    select json_agg(json_build_object(
               'task', c.task, 'path', c.path, 'epoch', c.epoch, 'node', c.node_id, 'incarnation', c.node_incarnation,
               'endpoint', c.node_endpoint, 'engine', c.node_engine_id, 'container', c.container_id,
               'op', c.op, 'input_hash', c.input_hash, 'attempt', c.attempt, 'secrets', c.secrets,
               'log_quota', c.log_quota_bytes, 'lost', case when n.node_id is null then true
                            when n.engine_id is distinct from c.node_engine_id then
                                n.incarnated_at + n.lost_after_ms * interval '1 millisecond' <= clock_timestamp()
                            else least(n.unhealthy_since, n.heartbeat_at) + n.lost_after_ms * interval '1 millisecond'
                                 <= clock_timestamp() end) order by c.task)::text as tasks
    from leasehold.task_containers c
    left join leasehold.nodes n on n.namespace = c.namespace and n.node_id = c.node_id
    where c.job_id = l.job_id and l.kind = 'RECIPE'
    ) k
    -- An epoch has one token for good: the token is the recorded one exactly if the epoch is.
    where l.epoch = r.epoch
      and leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  $2, l.token, $3, $4)
    order by r.n
) g on true
where c.command_id = $1
