-- worker_list.sql: worker processes with the leases that they hold, counted from their rows.
select w.worker_id, w.process_id, w.host, w.concurrency, w.started_at, w.seen_at, w.stopped_at, w.status::text,
       w.stopped_at is null and w.seen_at > clock_timestamp() - interval '30 seconds' as alive,
       coalesce(held.leases, 0) as leases
from leasehold.workers w
left join (
    select worker_id, process_id, count(*) as leases from leasehold.leases where namespace = $1 group by 1, 2
) held using (worker_id, process_id)
where w.namespace = $1
order by alive desc, w.worker_id, w.started_at desc
