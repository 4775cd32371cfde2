-- schema_of_inputs.sql: the schema for inputs of recipes of a type, if it has one.
-- $1 namespace   $2 job type
select t.schema::text as schema
from leasehold.schema_routes s
join leasehold.schemas t on t.namespace = s.namespace and t.digest = s.input_digest
where s.namespace = $1 and s.job_type = $2 and s.task = ''
