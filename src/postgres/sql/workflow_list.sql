-- workflow_list.sql: one page of workflows by name.
select w.name, w.namespace, w.state::text, w.generation, w.kind::text, w.route, w.overlap_limit, w.overlap_serial,
       w.priority, w.created_at, w.updated_at
from leasehold.workflows w
where w.namespace = $1 and ($2::text is null or w.name > $2)
order by w.name
limit $3
