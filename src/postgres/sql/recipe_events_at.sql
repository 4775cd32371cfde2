-- recipe_events_at.sql: what a recipe's log says of one path, oldest first.
-- $1 namespace   $2 job   $3 path
select e.ordinal, e.path, e.sort::text, e.op, e.input_hash, e.attempt, e.outcome, e.value::text, e.directive::text,
       e.failure_kind::text, e.failure_code, e.failure_message, e.exit_code, e.deadline, e.name, e.signal_id, e.child_id,
       e.recorded_at, e.worker_id, e.epoch
from leasehold.recipe_events e
where e.job_id = $2 and e.namespace = $1 and e.path_hash = sha256(convert_to($3, 'UTF8')) and e.path = $3
order by e.ordinal
