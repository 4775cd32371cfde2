-- bulk_reserve.sql: ids for a whole bulk, and the one clock reading that decides what is due.
select nextval('leasehold.jobs_job_id_seq') as job_id, clock_timestamp() as clock
from generate_series(1, $1)
