-- workflow_history.sql: what each generation of a workflow changed, newest first.
select h.generation, h.change, h.changed_at, h.definition::text
from leasehold.workflow_history h
where h.namespace = $1 and h.name = $2
order by h.generation desc
limit 100
