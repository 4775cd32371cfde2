-- register_schema.sql: what is asked of the jobs of a route that are submitted from now on. The texts are kept by digest.
-- $1 namespace   $2 job type   $3 task   $4 digests   $5 schemas   $6 digest for inputs   $7 for outputs   $8 most tasks of a type
with texts as (
    insert into leasehold.schemas (namespace, digest, schema)
    select distinct on (u.digest) $1, u.digest, u.schema::json
    from unnest($4::text[], $5::text[]) as u (digest, schema)
    order by u.digest
    on conflict do nothing
), there as materialized (
    select count(*) as tasks, count(*) filter (where s.task = $3) as this
    from leasehold.schema_routes s where s.namespace = $1 and s.job_type = $2
), routed as (
    insert into leasehold.schema_routes as s (namespace, job_type, task, input_digest, output_digest)
    select $1, $2, $3, $6, $7 from there t where t.this > 0 or t.tasks < $8
    on conflict (namespace, job_type, task) do update
    set input_digest = excluded.input_digest, output_digest = excluded.output_digest, registered_at = clock_timestamp()
    where (s.input_digest, s.output_digest) is distinct from (excluded.input_digest, excluded.output_digest)
    returning 1
)
select exists (select from routed) as changed, t.this = 0 and t.tasks >= $8 as is_full from there t
