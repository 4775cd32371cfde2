-- dispatch.sql: makes due jobs claimable, each under a dispatch attempt of its own, and tells when to look again.
-- $1 namespace   $2 how many at most
with due as materialized (
    -- Two dispatchers share the due jobs: each takes what the other has not locked. The clock of the scan may be old,
    -- the row is due by it all the more.
    select w.job_id, w.workflow, w.due_at
    from leasehold.waiting w
    where w.namespace = $1 and w.due_at <= statement_timestamp()
    order by w.due_at
    limit $2
    for update skip locked
), flows as materialized (
    -- A change of generation holds its workflow's row until it has ended what waits. Where it does, its jobs are left
    -- to it; afterwards they come under its eyes in the place to which they were moved.
    select w.name
    from (select distinct d.workflow from due d where d.workflow <> 'adhoc' order by 1) d
    cross join lateral (
        select w.name from leasehold.workflows w where w.namespace = $1 and w.name = d.workflow for share skip locked
    ) w
), moved as (
    -- By key, not by ctid: the end of another run may have made a row due, and moved it, since our snapshot.
    delete from leasehold.waiting w
    where w.job_id = any (array(
        select d.job_id from due d where d.workflow = 'adhoc' or d.workflow in (select f.name from flows f)))
    returning w.*
), queued as (
    insert into leasehold.ready (job_id, namespace, due_at, keep_attempt, kind, route, task, workflow, overlap_limit,
        rank, generation, dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses)
    select m.job_id, m.namespace, m.due_at, m.keep_attempt, m.kind, m.route, m.task, m.workflow, m.overlap_limit,
           m.rank, m.generation, m.dispatch_attempt + 1, m.attempt, m.epoch, m.failures_user, m.failures_system,
           m.failures_timeout, m.losses
    from moved m
    returning 1
)
select (select count(*) from queued) as moved,
       -- The first that this statement leaves.
       (select (extract(epoch from w.due_at - clock_timestamp()) * 1000000)::bigint
        from leasehold.waiting w
        where w.namespace = $1 and w.due_at < 'infinity'
          and w.due_at >= (select coalesce(max(d.due_at), '-infinity') from due d)
          and not w.job_id = any (array(select d.job_id from due d))
        order by w.due_at limit 1) as next_due_us,
       (select pg_notify('leasehold_ready', '') from queued limit 1) is null as quiet
