-- renew.sql: extends live leases by their stored duration, as many as were asked for at about the same time.
-- $1 jobs, ascending   $2 tokens   $3 each one's owner, an index into:   $4 namespaces   $5 workers   $6 processes
with asked as (
    select a.job_id, a.token, ($4::text[])[a.owner] as namespace, ($5::text[])[a.owner] as worker,
           ($6::uuid[])[a.owner] as process
    from unnest($1::bigint[], $2::uuid[], $3::integer[]) as a (job_id, token, owner)
), held as materialized (
    -- One row after the other: lock it, then read the clock. A row that somebody holds is left to a later question,
    -- so that it does not keep its neighbours waiting.
    select l.job_id
    from asked a
    cross join lateral (
        select l.* from leasehold.leases l where l.job_id = a.job_id for no key update skip locked
    ) l
    where leasehold.lease_is_live(l.namespace, l.token, l.worker_id, l.process_id, l.lease_expires_at,
                                  a.namespace, a.token, a.worker, a.process)
)
-- Past a deadline nothing is extended: a holder that ignores a cancel or a timeout loses the job at last.
update leasehold.leases l
set lease_expires_at = case when least(l.cancel_deadline, l.run_deadline) <= clock_timestamp() then l.lease_expires_at
                            else clock_timestamp() + l.lease_ms * interval '1 millisecond' end,
    renewals = l.renewals + case when least(l.cancel_deadline, l.run_deadline) <= clock_timestamp() then 0 else 1 end,
    -- Who took it over begins nothing that the claim's holder had not begun.
    claim_renewed = l.claim_renewed or l.epoch = l.claim_epoch
-- By key, not by ctid: a row that was renewed since our snapshot has moved.
where l.job_id = any (array(select h.job_id from held h))
returning l.job_id, (extract(epoch from l.lease_expires_at - clock_timestamp()) * 1000000)::bigint as remaining_us,
          l.cancel_requested_at is not null as cancel_requested
