-- audit_logs.sql: output is stored once, in pieces that do not overlap, under epochs that were granted.
-- $1 as of   $2 seconds of patience   $3 lines at most
select f.namespace, f.job_id, f.detail, 'read this job''s output with care, report it: no statement of ours does this' as remedy
from (
    select g.namespace, g.job_id,
           format('output of stream %s under epoch %s is stored twice from byte %s', g.stream, g.epoch, g.first_byte) as detail
    from (
        select g.namespace, g.job_id, g.epoch, g.stream, g.first_byte,
               lag(g.first_byte + octet_length(g.data)) over (
                   partition by g.job_id, g.task, g.epoch, g.stream order by g.first_byte) as next_byte
        from leasehold.job_logs g
    ) g
    where g.first_byte < g.next_byte
    union all
    select min(g.namespace), g.job_id, format('has output of epoch %s, which was never granted', g.epoch)
    from leasehold.job_logs g
    where not exists (select from leasehold.lease_history h where h.job_id = g.job_id and h.epoch = g.epoch)
      and not exists (select from leasehold.leases l where l.job_id = g.job_id and l.claim_epoch <= g.epoch and g.epoch <= l.epoch)
    group by g.job_id, g.epoch
) f
order by 2 limit $3
