-- lock_recipe.sql: waits for whoever writes beside a recipe's row, so that a reschedule sees every signal that was sent.
-- $1 job   $2 the longest wait, such as 800ms
select from leasehold.recipes r
where r.job_id = $1 and (select set_config('lock_timeout', $2, true)) is not null
for no key update
