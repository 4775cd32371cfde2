-- node_heartbeat.sql: the agent is alive and says how its engine is; an operator's drain outlasts a READY.
-- A farewell ($6) makes the heartbeat lapse at once, so that the next process need not wait for it.
update leasehold.nodes
set heartbeat_at = case when $6 then clock_timestamp() - heartbeat_ttl_ms * interval '1 ms' else clock_timestamp() end,
    state = case when $4 = 'READY' and cordoned then 'DRAINING' else $4 end::leasehold.node_state,
    reason = case when $4 = 'READY' and cordoned then reason else $5 end
where namespace = $1 and node_id = $2 and process_id = $3
returning state::text
