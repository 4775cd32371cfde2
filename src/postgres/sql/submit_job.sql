-- submit_job.sql: every single submission from Rust goes through the function that other languages call.
select s.job_id, s.created
from leasehold.submit_job(
    kind => $1, definition => $2::json, payload => $3::json, namespace => $4, workflow => $5, priority => $6,
    run_at => $7, idempotency_key => $8, timeout_ms => $9, retry => $10::json, trace_parent => $11
) s
