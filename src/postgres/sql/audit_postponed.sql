-- audit_postponed.sql: jobs whose recovery begins over and over and does not come to an end.
-- $1 as of   $2 seconds of patience   $3 lines at most
select l.namespace, l.job_id,
       format('was taken over %s times since its claim and is not cleaned up%s%s', t.n,
              case when l.node_id is null then '' else ' on node ' || l.node_id end,
              ', which was first put off ' || round(extract(epoch from $1 - l.cleanup_pending_since)) || ' s ago') as detail,
       case when l.node_id is null then 'see the log of worker ' || l.worker_id || ' for why it cannot end it'
            else 'see that node''s engine, where it is gone for good: leasehold node forget --force' end as remedy
from leasehold.leases l
cross join lateral (
    select count(*) as n from leasehold.lease_history h
    where h.job_id = l.job_id and h.epoch >= l.claim_epoch and h.how = 'expired'
) t
where t.n >= 5
order by 2 limit $3
