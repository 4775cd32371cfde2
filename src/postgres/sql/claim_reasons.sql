-- claim_reasons.sql: says of listed jobs that were not granted where they stand, for the typed reason why.
-- $1 namespace   $2 jobs
select r.job_id,
       case when w.job_id is not null then 'PENDING' when q.job_id is not null then 'QUEUED'
            when l.job_id is not null then 'RUNNING' else e.state::text end as state,
       q.generation, q.dispatch_attempt, f.state::text as workflow_state, f.generation as workflow_generation,
       case when f.overlap_serial and s.first < r.job_id then s.first
            when s.taken >= f.overlap_limit then s.running end as blocked_by,
       q.kind = 'CONTAINER' and not exists (
           select from leasehold.nodes nd
           where nd.namespace = $1 and nd.state = 'READY'
             and nd.heartbeat_at + nd.heartbeat_ttl_ms * interval '1 millisecond' > clock_timestamp()
             and (select count(*) from leasehold.node_slots ns
                  where ns.namespace = $1 and ns.node_id = nd.node_id) < nd.max_concurrency) as no_node
from unnest($2::bigint[]) as r (job_id)
left join lateral (select x.* from leasehold.waiting x where x.job_id = r.job_id and x.namespace = $1 limit 1) w on true
left join lateral (select x.* from leasehold.ready x where x.job_id = r.job_id and x.namespace = $1 limit 1) q on true
left join lateral (select x.* from leasehold.leases x where x.job_id = r.job_id and x.namespace = $1 limit 1) l on true
left join lateral (select x.* from leasehold.ended x where x.job_id = r.job_id and x.namespace = $1 limit 1) e on true
left join lateral (
    select x.* from leasehold.workflows x where x.namespace = $1 and x.name = q.workflow limit 1
) f on true
left join lateral (
    select min(ws.job_id) as running, count(*) as taken,
           least((select x.job_id from leasehold.waiting x where x.namespace = $1 and x.workflow = f.name
                      and x.overlap_limit is not null order by x.job_id limit 1),
                 (select x.job_id from leasehold.ready x where x.namespace = $1 and x.workflow = f.name
                      and x.overlap_limit is not null order by x.job_id limit 1),
                 (select x.job_id from leasehold.leases x where x.namespace = $1 and x.workflow = f.name
                      and x.overlap_limit is not null order by x.job_id limit 1)) as first
    from leasehold.workflow_slots ws
    where f.overlap_limit is not null and ws.namespace = $1 and ws.workflow = f.name
) s on true
