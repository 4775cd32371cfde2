-- complete.sql: ends live leases as COMPLETED: history, terminal row, gates, and the runs that waited for one.
-- $1 jobs, ascending   $2 tokens   $3 each one's owner, an index into:   $4 namespaces   $5 workers   $6 processes
-- $7 commands   $8 exit codes   $9 outputs
with asked as (
    select a.job_id, a.token, ($4::text[])[a.owner] as namespace, ($5::text[])[a.owner] as worker,
           ($6::uuid[])[a.owner] as process, a.command, a.exit_code, a.output
    from unnest($1::bigint[], $2::uuid[], $3::integer[], $7::uuid[], $8::integer[], $9::text[])
        as a (job_id, token, owner, command, exit_code, output)
), held as materialized (
    -- One row after the other: lock it, then read the clock. What is locked is left to a later question.
    select l.*, a.command, a.exit_code, a.output, clock_timestamp() as ended_at
    from asked a
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for update skip locked) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  a.namespace, a.token, a.worker, a.process)
), gone as (
    -- By key, not by ctid: a row that was renewed since our snapshot has moved.
    delete from leasehold.leases l where l.job_id = any (array(select h.job_id from held h))
), past as (
    insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at,
        ended_at, renewals, command_id, node_id, container_id, exit_code)
    select h.job_id, h.epoch, h.namespace, 'completed', h.worker_id, h.process_id, h.attempt, h.granted_at,
           h.ended_at, h.renewals, h.command, h.node_id, h.container_id, h.exit_code
    from held h
), ended as (
    insert into leasehold.ended (job_id, namespace, state, ended_at, workflow, kind, route, rank, generation,
        dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses, exit_code, output)
    select h.job_id, h.namespace, 'COMPLETED', h.ended_at, h.workflow, h.kind, h.route, h.rank, h.generation,
           h.dispatch_attempt, h.attempt, h.epoch, h.failures_user, h.failures_system, h.failures_timeout, h.losses,
           h.exit_code, h.output::json
    from held h
), node_slots as (
    delete from leasehold.node_slots s
    where s.job_id = any (array(select h.job_id from held h where h.node_id is not null or h.kind = 'RECIPE'))
), task_containers as (
    delete from leasehold.task_containers t
    where t.job_id = any (array(select h.job_id from held h where h.kind = 'RECIPE'))
), workflow_slots as (
    delete from leasehold.workflow_slots s
    where s.job_id = any (array(select h.job_id from held h where h.overlap_limit is not null))
), woken as (
    -- As many as a slot may be free for, in their order; the others look again by themselves.
    update leasehold.waiting w set due_at = clock_timestamp()
    where w.job_id = any (array(
        select b.job_id
        from (select distinct h.namespace, h.workflow, h.overlap_limit from held h where h.overlap_limit is not null) f
        cross join lateral (
            select b.job_id from leasehold.waiting b
            where b.namespace = f.namespace and b.workflow = f.workflow and b.overlap_limit is not null
              and b.blocked_by is not null
            order by b.job_id limit f.overlap_limit
        ) b))
    returning 1
)
select h.job_id, (select pg_notify('leasehold_waiting', '') from woken limit 1) is null as quiet,
       (select pg_notify('leasehold_ended', '')) is null as silent
from held h
