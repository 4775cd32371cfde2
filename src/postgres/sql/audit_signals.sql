-- audit_signals.sql: a signal belongs to a recipe, and was taken by exactly the event that says so.
-- $1 as of   $2 seconds of patience   $3 lines at most
select coalesce(s.namespace, e.namespace) as namespace, coalesce(s.job_id, e.job_id) as job_id,
       case when s.signal_id is null then format('event %s took signal %s, which does not exist', e.ordinal, e.signal_id)
            when r.job_id is null then format('signal %s belongs to no recipe', s.signal_id)
            else format('signal %s was taken by event %s, and event %s says so', s.signal_id,
                        coalesce(s.taken::text, 'none'), coalesce(e.ordinal::text, 'none')) end as detail,
       'look for who wrote by hand, and report it: no statement of ours does this' as remedy
from leasehold.signals s
full join (select e.* from leasehold.recipe_events e where e.sort = 'signal') e on e.signal_id = s.signal_id
left join leasehold.recipes r on r.job_id = s.job_id
where s.signal_id is null or r.job_id is null or s.taken is distinct from e.ordinal or s.job_id is distinct from coalesce(e.job_id, s.job_id)
order by 2 limit $3
