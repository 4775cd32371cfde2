-- audit_ended_once.sql: jobs that ended more often than they were reopened, or otherwise than their last lease says.
-- $1 as of   $2 seconds of patience   $3 lines at most
select f.namespace, f.job_id, f.detail,
       'the first end in `leasehold job show` is the one that counted, report it: no statement of ours does this' as remedy
from (
    select h.namespace, h.job_id,
           format('its leases ended it %s times, and it was reopened %s times', h.ends, r.n) as detail
    from (
        select h.job_id, min(h.namespace) as namespace, count(*) as ends
        from leasehold.lease_history h where h.how in ('completed', 'failed', 'canceled')
        group by h.job_id
    ) h
    cross join lateral (select count(*) as n from leasehold.reopenings r where r.job_id = h.job_id) r
    left join leasehold.ended e on e.job_id = h.job_id
    where h.ends > r.n + (e.job_id is not null)::integer
    union all
    select e.namespace, e.job_id,
           format('is %s, but its last lease is %s', e.state, coalesce(h.how::text, 'nowhere to be found'))
    from leasehold.ended e
    left join lateral (
        select h.how from leasehold.lease_history h where h.job_id = e.job_id order by h.epoch desc limit 1
    ) h on true
    where case when e.state <> 'CANCELED' then upper(h.how::text) is distinct from e.state::text
               when h.how = 'completed' then true
               -- A job that had failed is CANCELED only after a person reopened it.
               when h.how = 'failed' then not exists (select from leasehold.reopenings r where r.job_id = e.job_id) end
) f
order by 2 limit $3
