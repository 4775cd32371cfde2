-- lock_lease_to_end.sql: as lock_lease.sql, for what ends the lease: also waits for whoever appends or fences under it.
-- $1 job   $2 the longest wait, such as 800ms
select from leasehold.leases l
where l.job_id = $1 and (select set_config('lock_timeout', $2, true)) is not null
for update
