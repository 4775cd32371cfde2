-- node_cordon.sql: an operator drains a node, or lets it take jobs again.
update leasehold.nodes
set cordoned = $3,
    state = case when $3 then 'DRAINING' when state = 'DRAINING' then 'READY' else state::text end::leasehold.node_state,
    reason = case when $3 then 'drained by an operator' when state = 'DRAINING' then null else reason end
where namespace = $1 and node_id = $2
returning state::text
