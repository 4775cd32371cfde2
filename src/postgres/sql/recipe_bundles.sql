-- recipe_bundles.sql: the pinned recipes of some jobs, for what they declare.
-- $1 namespace   $2 jobs
select j.definition->>'digest' as digest, (j.definition->'bundle')::text as bundle
from unnest($2::bigint[]) as a (job_id)
cross join lateral (
    select j.definition from leasehold.jobs j where j.job_id = a.job_id and j.namespace = $1 and j.kind = 'RECIPE' limit 1
) j
