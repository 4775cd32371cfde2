-- audit_run_slots.sql: the slots in use of a workflow with an overlap limit are exactly its RUNNING jobs.
-- $1 as of   $2 seconds of patience   $3 lines at most
select f.namespace, f.job_id, f.detail, f.remedy
from (
    select s.namespace, s.job_id,
           format('run slot %s of workflow %s is taken by it, ', s.slot, s.workflow)
               || case when l.job_id is null then 'and it is not RUNNING' else format('and it is a run of %s', l.workflow) end as detail,
           format('delete from leasehold.workflow_slots where job_id = %s, and report it', s.job_id) as remedy
    from leasehold.workflow_slots s
    left join leasehold.leases l on l.job_id = s.job_id
    where l.job_id is null or (l.namespace, l.workflow) is distinct from (s.namespace, s.workflow)
    union all
    select l.namespace, l.job_id, format('runs under the overlap limit of workflow %s and has no run slot', l.workflow),
           'nothing at once: the workflow may run once too often until this one ends, report it'
    from leasehold.leases l
    where l.overlap_limit is not null and l.kind <> 'RECIPE'
      and not exists (select from leasehold.workflow_slots s where s.job_id = l.job_id)
) f
order by 2 limit $3
