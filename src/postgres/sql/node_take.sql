-- node_take.sql: locks a node that is to be forgotten; a claim that is placing a job on it ends first.
select 1 from leasehold.nodes where namespace = $1 and node_id = $2 for update
