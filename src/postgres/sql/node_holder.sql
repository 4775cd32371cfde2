-- node_holder.sql: who heartbeats under an id that was refused, and for how long at most it is believed.
select endpoint, process_id,
       greatest(0, extract(epoch from heartbeat_at + heartbeat_ttl_ms * interval '1 ms' - clock_timestamp()) * 1000)::bigint
           as retry_after_ms
from leasehold.nodes
where namespace = $1 and node_id = $2
