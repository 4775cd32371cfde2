-- lock_lease.sql: waits for a lease's row before a statement that skips locked rows is asked about it alone, so that
-- the answer comes from a snapshot younger than the lock. For what leaves the lease in place.
-- $1 job   $2 the longest wait, such as 800ms
select from leasehold.leases l
where l.job_id = $1 and (select set_config('lock_timeout', $2, true)) is not null
for no key update
