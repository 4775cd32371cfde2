-- lock_recipe.sql: waits for whoever writes beside a recipe's row, so that a reschedule sees every signal that was sent. First
-- the job's own row, as whoever changes its payload does: the other way round the two could wait for each other.
-- $1 job   $2 the longest wait, such as 800ms
with job as materialized (
    select from leasehold.jobs j
    where j.job_id = $1 and (select set_config('lock_timeout', $2, true)) is not null
    for no key update
)
select from leasehold.recipes r
where r.job_id = $1 and (select count(*) from job) >= 0
for no key update
