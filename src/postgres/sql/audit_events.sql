-- audit_events.sql: a recipe's log has contiguous ordinals, as many as are counted, in the order of its leases, and
-- belongs to a job that exists.
-- $1 as of   $2 seconds of patience   $3 lines at most
with logs as (
    select e.job_id, min(e.namespace) as namespace, min(e.ordinal) as first, max(e.ordinal) as last, count(*) as events,
           sum(e.bytes) as bytes, count(*) filter (where e.epoch < e.epoch_before) as backwards,
           count(*) filter (where e.path_hash <> sha256(convert_to(e.path, 'UTF8'))) as misnamed
    from (select e.*, lag(e.epoch) over (partition by e.job_id order by e.ordinal) as epoch_before
          from leasehold.recipe_events e) e
    group by e.job_id
), judged as (
    select coalesce(r.namespace, l.namespace) as namespace, coalesce(r.job_id, l.job_id) as job_id,
           case when r.job_id is null then 'has events, and is no recipe'
                when j.job_id is null then 'has a row in recipes, and was never submitted'
                when l.events is distinct from nullif(r.events, 0) then
                    format('%s events are counted, and %s are in the log', r.events, coalesce(l.events, 0))
                when l.first <> 1 or l.last <> l.events then format('the log of %s events ends at ordinal %s', l.events, l.last)
                when coalesce(l.bytes, 0) <> r.bytes then
                    format('%s bytes are counted, and %s are in the log', r.bytes, coalesce(l.bytes, 0))
                when l.backwards > 0 then 'an event was recorded under an older lease than the one before it'
                when l.misnamed > 0 then 'an event is kept under the hash of another path' end as detail
    from leasehold.recipes r
    full join logs l on l.job_id = r.job_id
    left join leasehold.jobs j on j.job_id = r.job_id
)
select d.namespace, d.job_id, d.detail,
       'do not let it run on, look for who wrote by hand, and report it: no statement of ours does this' as remedy
from judged d
where d.detail is not null
order by 2 limit $3
