-- recall_end.sql: tells the command that ended a lease how it ended; nobody else is told.
-- $1 job   $2 epoch   $3 command   $4 namespace   $5 worker   $6 process
-- The message in the log makes this answer's own commit wait for the standby, if there is one, and so for the end's too.
select h.how::text as how, h.due_at, pg_logical_emit_message(true, 'leasehold', '') as logged
from leasehold.lease_history h
where h.job_id = $1 and h.epoch = $2 and h.command_id = $3 and h.namespace = $4 and h.worker_id = $5
  and h.process_id = $6
