-- node_register.sql: an agent takes charge of an engine, unless another process heartbeats under that id.
-- A changed endpoint or engine is another incarnation: what was placed on the old one stays the old one's.
insert into leasehold.nodes as n (namespace, node_id, endpoint, engine_id, process_id, max_concurrency, os, architecture,
    cpu_millis, memory_bytes, engine_version, heartbeat_ttl_ms, lost_after_ms, state)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 'READY')
on conflict (namespace, node_id) do update
set endpoint = excluded.endpoint, engine_id = excluded.engine_id, process_id = excluded.process_id,
    max_concurrency = excluded.max_concurrency, os = excluded.os, architecture = excluded.architecture,
    cpu_millis = excluded.cpu_millis, memory_bytes = excluded.memory_bytes, engine_version = excluded.engine_version,
    heartbeat_ttl_ms = excluded.heartbeat_ttl_ms, lost_after_ms = excluded.lost_after_ms,
    heartbeat_at = clock_timestamp(),
    incarnation = n.incarnation
        + case when (n.endpoint, n.engine_id) is distinct from (excluded.endpoint, excluded.engine_id) then 1 else 0 end,
    incarnated_at = case when (n.endpoint, n.engine_id) is distinct from (excluded.endpoint, excluded.engine_id)
                         then clock_timestamp() else n.incarnated_at end,
    state = case when n.cordoned then 'DRAINING' else 'READY' end::leasehold.node_state,
    reason = case when n.cordoned then n.reason end
where n.process_id = excluded.process_id
   or n.heartbeat_at + n.heartbeat_ttl_ms * interval '1 ms' <= clock_timestamp()
returning incarnation, state::text
