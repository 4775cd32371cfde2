-- node_list.sql: every node with its slots in use, counted from their rows.
select n.node_id, n.namespace, n.state::text, n.reason, n.endpoint, n.engine_id, n.incarnation, n.max_concurrency, n.os,
       n.architecture, n.cpu_millis, n.memory_bytes, n.engine_version, n.heartbeat_at, n.registered_at,
       (extract(epoch from now.clock - n.heartbeat_at) * 1000)::bigint as heartbeat_age_ms,
       n.heartbeat_at + n.heartbeat_ttl_ms * interval '1 ms' > now.clock as fresh,
       n.heartbeat_at + n.lost_after_ms * interval '1 ms' <= now.clock as lost,
       (select count(*) from leasehold.node_slots s where s.namespace = n.namespace and s.node_id = n.node_id) as slots_used
from leasehold.nodes n
cross join (select clock_timestamp() as clock) now
where n.namespace = $1
order by n.node_id
