-- worker_register.sql: a worker process says that it runs; processes that stopped or fell silent a day ago are dropped.
with old as (
    delete from leasehold.workers
    where namespace = $1 and coalesce(stopped_at, seen_at) < clock_timestamp() - interval '1 day'
)
insert into leasehold.workers as w (namespace, worker_id, process_id, host, concurrency, status)
values ($1, $2, $3, $4, $5, $6::text::json)
on conflict (namespace, worker_id, process_id) do update
set seen_at = clock_timestamp(), stopped_at = null, host = excluded.host, concurrency = excluded.concurrency,
    status = excluded.status
