-- audit_unserved.sql: QUEUED jobs of routes that no living worker of their namespace serves.
-- $1 as of   $2 seconds of patience   $3 lines at most
with served as materialized (
    select distinct w.namespace, s.route
    from leasehold.workers w
    cross join lateral json_array_elements_text(
        case when json_typeof(w.status->'routes') = 'array' then w.status->'routes' else '[]' end) as s (route)
    where w.stopped_at is null and w.seen_at > $1 - interval '30 seconds'
), queued as materialized (
    select distinct r.namespace, r.kind, r.route, r.task from leasehold.ready r
), unserved as materialized (
    select q.* from queued q
    where not exists (
        select from served s where s.namespace = q.namespace and s.route = rtrim(q.kind::text || ' ' || q.route))
)
select r.namespace, r.job_id,
       format('is QUEUED for %s s, and no living worker serves %s', round(extract(epoch from $1 - r.due_at)),
              rtrim(r.kind::text || ' ' || r.route)) as detail,
       case when r.kind = 'RECIPE' and r.route <> 'recipe'
                   then 'start a program that serves recipes of this type (recipe_job_type), or cancel the job'
                   when r.kind = 'HANDLER' then 'start a program that registers this handler, or cancel the job'
                   else 'start `leasehold worker` for this namespace' end as remedy
from unserved u
join leasehold.ready r on r.namespace = u.namespace and r.kind = u.kind and r.route = u.route and r.task = u.task
where r.due_at < $1 - $2 * interval '1 second'
order by r.due_at, 2 limit $3
