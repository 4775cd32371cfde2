-- V12__versions_of_any_size.sql: a version of the payload's key `execution` that is larger than any we write is a version
-- all the same: no worker that does not know it may claim the job.

create or replace function leasehold.execution_version(payload json) returns integer
language sql immutable as $$
    select case when json_typeof(payload) = 'object' and json_typeof(payload->'execution') = 'object'
                     and json_typeof(payload->'execution'->'version') = 'number'
                     and payload->'execution'->>'version' ~ '^-?[0-9]+$'
                then case when length(payload->'execution'->>'version') <= 9
                          then (payload->'execution'->>'version')::integer else 2147483647 end end
$$;

update leasehold.recipes r
set execution_version = leasehold.execution_version(j.payload)
from leasehold.jobs j
where j.job_id = r.job_id and r.execution_version is null and json_typeof(j.payload) = 'object'
  and leasehold.execution_version(j.payload) is not null;
