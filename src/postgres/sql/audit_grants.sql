-- audit_grants.sql: every grant that a command recorded is held, or has its row in the history.
-- $1 as of   $2 seconds of patience   $3 lines at most
select c.namespace, r.job_id, format('epoch %s was granted, and left no trace in leases or lease_history', r.epoch) as detail,
       'look for who deleted rows by hand, report it: no statement of ours does this' as remedy
from leasehold.commands c
cross join lateral unnest(c.jobs, c.epochs) as r (job_id, epoch)
left join leasehold.leases l on l.job_id = r.job_id and l.epoch = r.epoch
left join leasehold.lease_history h on h.job_id = r.job_id and h.epoch = r.epoch
where l.job_id is null and h.job_id is null
order by 2 limit $3
