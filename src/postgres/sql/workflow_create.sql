-- workflow_create.sql: a new workflow with its first line of history; no row when the name is taken.
with flow as (
    insert into leasehold.workflows (namespace, name, kind, route, definition, payload, priority, overlap_limit,
        overlap_serial, timeout_ms, max_user, max_system, max_timeout, backoff_ms, backoff_cap_ms)
    values ($1, $2, $3::text::leasehold.job_kind, $4, $5::json, $6::json, $7, $8, $9, $10, $11, $12, $13, $14, $15)
    on conflict do nothing
    returning namespace, name, generation, definition
)
insert into leasehold.workflow_history (namespace, name, generation, change, definition)
select namespace, name, generation, 'created', definition from flow
returning generation
