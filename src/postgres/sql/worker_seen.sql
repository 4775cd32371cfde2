-- worker_seen.sql: a worker process is alive, or says farewell.
update leasehold.workers
set seen_at = clock_timestamp(), status = $4::text::json, stopped_at = case when $5 then clock_timestamp() end
where namespace = $1 and worker_id = $2 and process_id = $3
