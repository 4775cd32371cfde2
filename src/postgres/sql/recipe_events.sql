-- recipe_events.sql: a page of a recipe's log, oldest first; it ends early where its values are large.
-- $1 namespace   $2 job   $3 after this ordinal   $4 most events   $5 bytes after which it ends
select e.ordinal, e.path, e.sort::text, e.op, e.input_hash, e.attempt, e.outcome, e.value::text, e.directive::text,
       e.failure_kind::text, e.failure_code, e.failure_message, e.exit_code, e.deadline, e.name, e.signal_id, e.child_id,
       e.recorded_at, e.worker_id, e.epoch
from (
    select e.*, sum(e.bytes) over (order by e.ordinal rows between unbounded preceding and 1 preceding) as before
    from (
        select e.* from leasehold.recipe_events e
        where e.job_id = $2 and e.namespace = $1 and e.ordinal > $3
        order by e.ordinal limit $4
    ) e
) e
where e.before is null or e.before <= $5
order by e.ordinal
