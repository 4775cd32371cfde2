-- retry_lock.sql: the workflow of a job that is to be reopened, under the lock that a submit of a run takes too.
select w.state::text
from leasehold.jobs j
join leasehold.workflows w on w.namespace = j.namespace and w.name = j.workflow
where j.job_id = $2 and j.namespace = $1
for share of w
