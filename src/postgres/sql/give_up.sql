-- give_up.sql: ends live leases otherwise than as COMPLETED: fail, lost, cancel or release. Whether a try is left, and
-- whether a job that would wait again is CANCELED instead, is decided here.
-- $1 jobs, ascending   $2 tokens   $3 each one's owner, an index into:   $4 namespaces   $5 workers   $6 processes
-- $7 commands   $8 'fail', 'fail_for_good' (no try is left), 'lost', 'cancel' or 'release'   $9 failure kinds   $10 codes (release: the reason)   $11 messages
-- $12 exit codes   the worker's defaults: $13 USER, $14 SYSTEM, $15 TIMEOUT failures, $16 back-off, $17 its cap, in ms
-- $18 delays of releases in ms   $19 how many losses in a row end a job
with asked as (
    select ($4::text[])[a.owner] as namespace, ($5::text[])[a.owner] as worker, ($6::uuid[])[a.owner] as process, a.*
    from unnest($1::bigint[], $2::uuid[], $3::integer[], $7::uuid[], $8::text[], $9::text[], $10::text[], $11::text[],
                $12::integer[], $13::integer[], $14::integer[], $15::integer[], $16::bigint[], $17::bigint[],
                $18::bigint[], $19::integer[])
        as a (job_id, token, owner, command, act, failure_kind, code, message, exit_code, max_user, max_system,
              max_timeout, backoff_ms, backoff_cap_ms, delay_ms, loss_limit)
), held as materialized (
    -- A job of a workflow also needs its workflow's row, which a change of generation holds to its end. It is taken
    -- first, as such changes go on to leases. What is locked is left to a later question.
    select l.*, a.command, a.act, a.failure_kind as fault, a.code, a.message, a.exit_code, a.delay_ms, a.loss_limit,
           a.max_user, a.max_system, a.max_timeout, a.backoff_ms, a.backoff_cap_ms,
           clock_timestamp() as ended_at, w.generation is distinct from l.generation and l.workflow <> 'adhoc'
               and (l.kind <> 'RECIPE' or w.state = 'TERMINATED') as superseded
    from asked a
    cross join lateral (select l.namespace, l.workflow from leasehold.leases l where l.job_id = a.job_id) o
    left join lateral (
        select w.generation, w.state from leasehold.workflows w
        where w.namespace = o.namespace and w.name = o.workflow and o.workflow <> 'adhoc'
        for share skip locked
    ) w on true
    cross join lateral (select l.* from leasehold.leases l where l.job_id = a.job_id for update skip locked) l
    where (l.workflow = 'adhoc' or w.generation is not null)
      and leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  a.namespace, a.token, a.worker, a.process)
), counted as materialized (
    select h.*, c.failures, c.most, p.got_on, h.loss_excused or p.got_on or p.was_refused as excused,
           h.failures_user + (h.act in ('fail', 'fail_for_good') and h.fault = 'USER')::integer as now_user,
           -- A loss while the database itself was away is nobody's failure.
           case when p.got_on then 0 else h.failures_system end
               + (h.act in ('fail', 'fail_for_good') and h.fault = 'SYSTEM'
                  or h.act = 'lost' and not (h.loss_excused or p.got_on or p.was_refused))::integer as now_system,
           h.failures_timeout + (h.act in ('fail', 'fail_for_good') and h.fault = 'TIMEOUT')::integer as now_timeout,
           case when p.got_on then 0 else h.losses end
               + (h.act = 'lost' and not (h.loss_excused or p.got_on or p.was_refused))::integer as now_losses,
           coalesce(j.backoff_ms, h.backoff_ms, 30000) as base_ms,
           coalesce(j.backoff_cap_ms, h.backoff_cap_ms, 3600000) as cap_ms
    from held h
    cross join lateral (select j.* from leasehold.jobs j where j.job_id = h.job_id limit 1) j
    cross join lateral (
        -- RECIPE: one that has recorded something since its claim does not kill its workers, and one whose payload
        -- was refused has a count of its own for that.
        select h.act = 'lost' and h.kind = 'RECIPE' and coalesce(
                   (select e.epoch from leasehold.recipe_events e where e.job_id = h.job_id order by e.ordinal desc limit 1)
                   >= h.claim_epoch, false) as got_on,
               h.act = 'lost' and h.kind = 'RECIPE' and coalesce(
                   (select r.refused_epoch from leasehold.recipes r where r.job_id = h.job_id limit 1)
                   >= h.claim_epoch, false) as was_refused
    ) p
    cross join lateral (
        select case h.fault when 'USER' then h.failures_user when 'SYSTEM' then h.failures_system
                            else h.failures_timeout end + 1 as failures,
               case h.fault when 'USER' then coalesce(j.max_user, h.max_user, 1)
                            when 'SYSTEM' then coalesce(j.max_system, h.max_system, 3)
                            else coalesce(j.max_timeout, h.max_timeout, 1) end as most
    ) c
), decided as materialized (
    select c.*, d.how, d.looping, d.how = 'canceled' and c.superseded and c.act <> 'cancel' and c.cancel_requested_at is null as stale,
           -- Exponential, with a cap and full jitter: anywhere between nothing and the whole step. A RECIPE goes on at
           -- once: nothing that it has done is done again.
           case d.how when 'retrying' then c.ended_at + interval '1 millisecond'
                          * (case when c.act = 'lost' and (c.excused or c.kind = 'RECIPE') then 0 else random() end * least(c.cap_ms, c.base_ms * power(2, least(c.failures - 1, 40))))
                      when 'released' then c.ended_at + c.delay_ms * interval '1 millisecond' end as due_at
    from counted c
    cross join lateral (
        select case when c.act = 'cancel' then 'canceled'
                    when c.act = 'fail_for_good' or c.act = 'fail' and c.failures >= c.most then 'failed'
                    when o.looping or c.act = 'lost' and not c.excused and c.failures >= c.most then 'failed'
                    when c.cancel_requested_at is not null or c.superseded then 'canceled'
                    when c.act in ('fail', 'lost') then 'retrying'
                    else 'released' end as how, o.looping
        from (select c.act = 'lost' and not c.excused and c.now_losses >= c.loss_limit as looping) o
    ) d
), gone as (
    delete from leasehold.leases l where l.job_id = any (array(select h.job_id from held h))
), told as materialized (
    -- What the books say of the failure: a superseded job's own is not why it ended.
    select d.*,
           case when stale then 'SYSTEM' when act = 'cancel' then null when act in ('fail', 'fail_for_good', 'lost') then fault
                when how = 'released' then 'SYSTEM' end::leasehold.failure_kind as why_kind,
           case when stale then 'superseded' when looping then 'crash_loop'
                when act in ('fail', 'fail_for_good', 'lost') or how = 'released' then code end as why_code,
           case when stale then 'its workflow has moved on to another generation'
                when act in ('fail', 'fail_for_good', 'lost') then message when how = 'released' then '' end as why_message,
           case when act in ('fail', 'fail_for_good') and not stale then exit_code end as why_exit
    from decided d
), past as (
    insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at,
        ended_at, renewals, command_id, node_id, container_id, exit_code, failure_kind, failure_code, failure_message,
        due_at)
    select t.job_id, t.epoch, t.namespace, t.how::leasehold.lease_end, t.worker_id, t.process_id, t.attempt,
           t.granted_at, t.ended_at, t.renewals, t.command, t.node_id, t.container_id, t.why_exit, t.why_kind,
           t.why_code, t.why_message, t.due_at
    from told t
), ended as (
    insert into leasehold.ended (job_id, namespace, state, ended_at, workflow, kind, route, rank, generation,
        dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses, exit_code,
        failure_kind, failure_code, failure_message)
    select t.job_id, t.namespace, upper(t.how)::leasehold.job_end, t.ended_at, t.workflow, t.kind, t.route, t.rank,
           t.generation, t.dispatch_attempt, t.attempt, t.epoch, t.now_user, t.now_system, t.now_timeout, t.now_losses,
           t.why_exit, t.why_kind, t.why_code, t.why_message
    from told t where t.how in ('failed', 'canceled')
), again as (
    insert into leasehold.waiting (job_id, namespace, due_at, keep_attempt, kind, route, task, workflow, overlap_limit,
        rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses)
    select t.job_id, t.namespace, t.due_at, t.how = 'released', t.kind, t.route, t.task, t.workflow, t.overlap_limit,
           t.rank, t.generation, t.dispatch_attempt, t.attempt, t.epoch, t.now_user, t.now_system, t.now_timeout,
           -- Losses in a row: a lease that ended by its holder's word ends the row, if work was begun under it.
           case when t.act = 'lost' or t.act = 'release' and not t.claim_renewed then t.now_losses else 0 end
    from told t where t.how in ('retrying', 'released')
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
select t.job_id, t.how, t.due_at,
       (select pg_notify('leasehold_waiting', '')
        where exists (select from told t where t.how in ('retrying', 'released')) or exists (select from woken)) is null as quiet,
       (select pg_notify('leasehold_ended', '')) is null as silent
from told t
