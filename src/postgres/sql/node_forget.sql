-- node_forget.sql: a forgotten node has no slots; its jobs find their runtime unavailable.
with slots as (
    delete from leasehold.node_slots where namespace = $1 and node_id = $2
)
delete from leasehold.nodes where namespace = $1 and node_id = $2
