-- bulk_workflows.sql: what the runs of a bulk need of their workflows, under the lock that submit_job takes too.
select w.namespace, w.name, w.generation, w.state::text, w.kind::text, w.route, w.definition::text, w.payload::text,
       w.priority, w.overlap_limit, w.timeout_ms, w.max_user, w.max_system, w.max_timeout, w.backoff_ms, w.backoff_cap_ms
from leasehold.workflows w
join unnest($1::text[], $2::text[]) asked (namespace, name) using (namespace, name)
order by w.namespace, w.name
for share of w
