-- lock_workflow.sql: waits for a change of a job's workflow that is under way; before the lease's row, as such a
-- change also goes from the workflow to its leases.
-- $1 job   $2 the longest wait, such as 800ms
select from leasehold.workflows w
where (w.namespace, w.name) = (select l.namespace, l.workflow from leasehold.leases l where l.job_id = $1)
  and (select set_config('lock_timeout', $2, true)) is not null
for share
