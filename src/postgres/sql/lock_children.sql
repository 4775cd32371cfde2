-- lock_children.sql: waits for ends of a recipe's children that are under way, so that a reschedule sees them.
-- $1 job   $2 the longest wait, such as 800ms
select from leasehold.recipe_children k
where k.parent_id = $1 and (select set_config('lock_timeout', $2, true)) is not null
order by k.job_id
for no key update
