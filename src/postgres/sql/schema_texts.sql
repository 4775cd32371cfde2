-- schema_texts.sql: schemas by their digests.
-- $1 namespace   $2 digests
select s.digest, s.schema::text as schema
from leasehold.schemas s
where s.namespace = $1 and s.digest = any ($2)
order by s.digest
