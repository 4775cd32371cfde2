-- await_lease.sql: waits for a lease's row in the caller's transaction, which is about to end the lease.
-- $1 job
select from leasehold.leases l where l.job_id = $1 for update
