-- workflow_lock.sql: takes a workflow's row, after every submit of its runs that is under way, and tells what stands there.
select w.generation, w.state::text,
       w.kind = $3::text::leasehold.job_kind and w.route = $4 and w.definition::text = $5 and w.payload::text = $6
       and w.priority = $7 and w.overlap_serial = $9
       and (w.overlap_limit, w.timeout_ms, w.max_user, w.max_system, w.max_timeout, w.backoff_ms, w.backoff_cap_ms)
           is not distinct from ($8, $10, $11, $12, $13, $14, $15) as same
from leasehold.workflows w
where w.namespace = $1 and w.name = $2
for update
