-- audit_keys.sql: an idempotency key names a job that exists; otherwise its submitter was told of a job that is lost.
-- $1 as of   $2 seconds of patience   $3 lines at most
select k.namespace, k.job_id, 'an idempotency key names it, and there is no such job' as detail,
       format('delete from leasehold.idempotency_keys where job_id = %s, submit the work anew, and report it', k.job_id) as remedy
from leasehold.idempotency_keys k
left join leasehold.jobs j on j.job_id = k.job_id
where j.namespace is distinct from k.namespace
order by 2 limit $3
