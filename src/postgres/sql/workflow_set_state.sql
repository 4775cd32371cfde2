-- workflow_set_state.sql: pause and terminate are new generations; resume goes on with the present one.
with flow as (
    update leasehold.workflows
    set state = $3::text::leasehold.workflow_state, updated_at = clock_timestamp(),
        generation = generation + case when $3 = 'ACTIVE' then 0 else 1 end
    where namespace = $1 and name = $2
    returning namespace, name, generation, definition
), noted as (
    insert into leasehold.workflow_history (namespace, name, generation, change, definition)
    select namespace, name, generation, lower($3), definition from flow
    where $3 <> 'ACTIVE'
)
select generation from flow
