-- bulk_read_keys.sql: which job each key stands for, and whether for the same request; read after the keys were taken.
select asked.job_id as reserved, k.job_id,
       k.request_hash = leasehold.request_hash(asked.kind, asked.definition, asked.payload, asked.workflow, asked.priority,
                                               asked.run_at, asked.timeout_ms, asked.max_user, asked.max_system,
                                               asked.max_timeout, asked.backoff_ms, asked.backoff_cap_ms) as same
from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[],
            $9::timestamptz[], $10::bigint[], $11::integer[], $12::integer[], $13::integer[], $14::bigint[], $15::bigint[])
     asked (job_id, namespace, key, kind, definition, payload, workflow, priority, run_at, timeout_ms, max_user,
            max_system, max_timeout, backoff_ms, backoff_cap_ms)
join leasehold.idempotency_keys k on k.namespace = asked.namespace and k.key = asked.key
