-- audit_generations.sql: PENDING and QUEUED jobs that no claim may take, because their workflow has moved on without them.
-- $1 as of   $2 seconds of patience   $3 lines at most
select f.namespace, f.job_id, f.detail, 'leasehold job cancel ' || f.job_id || ', then trigger the workflow where the run is still wanted' as remedy
from (
    select r.namespace, r.job_id,
           case when w.name is null then format('its workflow %s is gone', r.workflow)
                when w.state = 'TERMINATED' then format('its workflow %s is terminated', r.workflow)
                when r.queued and w.state = 'PAUSED' then format('is QUEUED although its workflow %s is paused', r.workflow)
                when r.in_flight or r.held then null
                when r.generation <> w.generation
                    then format('is of generation %s of workflow %s, which is at %s', r.generation, r.workflow, w.generation)
           end as detail
    from (
        select q.namespace, q.job_id, q.workflow, q.generation, false as queued, q.held_due_at is not null as held,
               q.kind = 'RECIPE' and q.attempt > 0 as in_flight
        from leasehold.waiting q where q.workflow <> 'adhoc'
        union all
        select q.namespace, q.job_id, q.workflow, q.generation, true, false, q.kind = 'RECIPE' and q.attempt > 0
        from leasehold.ready q where q.workflow <> 'adhoc'
    ) r
    left join leasehold.workflows w on w.namespace = r.namespace and w.name = r.workflow
) f
where f.detail is not null
order by 2 limit $3
