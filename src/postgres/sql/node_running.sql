-- node_running.sql: the jobs that are RUNNING on a node; read after the node was locked, in a younger snapshot.
select job_id from leasehold.node_slots where namespace = $1 and node_id = $2
union
select job_id from leasehold.task_containers where namespace = $1 and node_id = $2
union
select job_id from leasehold.leases where namespace = $1 and node_id = $2
order by job_id
