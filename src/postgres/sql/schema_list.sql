-- schema_list.sql: what is asked of jobs that are submitted now, by job type and op.
-- $1 namespace
select s.job_type, s.task, s.input_digest, s.output_digest, s.registered_at
from leasehold.schema_routes s
where s.namespace = $1
order by s.job_type, s.task
