-- set_payload.sql: replaces the client payload of a job that has not ended, if its revision is the expected one.
-- $1 namespace   $2 job   $3 payload   $4 expected revision
with job as materialized (
    select j.payload_revision, j.kind = 'RECIPE' and json_typeof($3::text::json) not in ('object', 'null') as misfit
    from leasehold.jobs j where j.job_id = $2 and j.namespace = $1
    for no key update
), ended as materialized (
    select e.state::text from leasehold.ended e where e.job_id = $2
), changed as (
    update leasehold.jobs j set payload = $3::text::json, payload_revision = j.payload_revision + 1
    where j.job_id = $2 and j.payload_revision = $4 and exists (select from job where not job.misfit)
      and not exists (select from ended)
    returning j.payload_revision
), beside as (
    update leasehold.recipes r
    set refusals = 0, execution_version = leasehold.execution_version($3::text::json)
    where r.job_id = $2 and exists (select from changed)
)
select job.payload_revision as revision, job.misfit, ended.state, changed.payload_revision as changed_to
from job
left join ended on true
left join changed on true
