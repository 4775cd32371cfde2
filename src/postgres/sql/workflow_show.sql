-- workflow_show.sql: one workflow with its definition and its unfinished runs.
select w.name, w.namespace, w.state::text, w.generation, w.kind::text, w.route, w.overlap_limit, w.overlap_serial,
       w.priority, w.created_at, w.updated_at, w.definition::text, w.payload::text, w.timeout_ms, w.max_user, w.max_system,
       w.max_timeout, w.backoff_ms, w.backoff_cap_ms,
       (select count(*) from leasehold.waiting x where x.namespace = $1 and x.workflow = $2) as pending,
       (select count(*) from leasehold.ready x where x.namespace = $1 and x.workflow = $2) as queued,
       (select count(*) from leasehold.leases x where x.namespace = $1 and x.workflow = $2) as running
from leasehold.workflows w
where w.namespace = $1 and w.name = $2
