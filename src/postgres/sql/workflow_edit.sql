-- workflow_edit.sql: a changed definition is a new generation.
with flow as (
    update leasehold.workflows
    set generation = generation + 1, updated_at = clock_timestamp(), kind = $3::text::leasehold.job_kind, route = $4,
        definition = $5::json, payload = $6::json, priority = $7, overlap_limit = $8, overlap_serial = $9, timeout_ms = $10,
        max_user = $11, max_system = $12, max_timeout = $13, backoff_ms = $14, backoff_cap_ms = $15
    where namespace = $1 and name = $2
    returning namespace, name, generation, definition
)
insert into leasehold.workflow_history (namespace, name, generation, change, definition)
select namespace, name, generation, 'edited', definition from flow
returning generation
