-- audit_tokens.sql: a lease token belongs to one grant. Tokens are compared here and never shown.
-- $1 as of   $2 seconds of patience   $3 lines at most
select t.namespace, t.job_id, format('shares its lease token with job %s', t.other) as detail,
       'end the worker process that holds it, and report it: no statement of ours does this' as remedy
from (
    select l.namespace, l.job_id, count(*) over w as holders,
           case when first_value(l.job_id) over w = l.job_id then last_value(l.job_id) over w
                else first_value(l.job_id) over w end as other
    from leasehold.leases l
    window w as (partition by l.token order by l.job_id rows between unbounded preceding and unbounded following)
) t
where t.holders > 1
order by 2 limit $3
