-- The checker's own record of what happened to leases and ends, kept by the database in the same transactions. Tokens only as digests.
create schema chaos;

create function chaos.micros(at timestamptz) returns bigint language sql immutable
    as $$ select (extract(epoch from at) * 1000000)::bigint $$;

create table chaos.leases_seen (
    seq bigint generated always as identity,
    at bigint not null default chaos.micros(clock_timestamp()),
    job_id bigint not null,
    old_epoch bigint, old_token text, old_owner text, old_expires bigint,
    new_epoch bigint, new_token text, new_owner text, new_expires bigint,
    claim_epoch bigint not null,
    lease_ms integer not null,
    cancel boolean not null default false,
    postponed boolean not null default false,
    node_id text,
    container_id text,
    -- Whose session it was; none where nobody of the fleet made the change.
    member text
);

create function chaos.see_lease() returns trigger language plpgsql as $$
declare
    l leasehold.leases := coalesce(new, old);
begin
    insert into chaos.leases_seen (job_id, old_epoch, old_token, old_owner, old_expires, new_epoch, new_token, new_owner,
        new_expires, claim_epoch, lease_ms, cancel, postponed, node_id, container_id, member)
    values (l.job_id, old.epoch, md5(old.token::text), old.worker_id || '/' || old.process_id,
        chaos.micros(old.lease_expires_at), new.epoch, md5(new.token::text), new.worker_id || '/' || new.process_id,
        chaos.micros(new.lease_expires_at), l.claim_epoch, l.lease_ms,
        tg_op = 'UPDATE' and old.cancel_requested_at is distinct from new.cancel_requested_at,
        tg_op = 'UPDATE' and old.recovery_not_before is distinct from new.recovery_not_before,
        l.node_id, l.container_id, nullif(current_setting('chaos.member', true), ''));
    return null;
end $$;
create trigger chaos_sees after insert or update or delete on leasehold.leases
    for each row execute function chaos.see_lease();

create table chaos.ends_seen (
    seq bigint generated always as identity,
    at bigint not null default chaos.micros(clock_timestamp()),
    job_id bigint not null,
    op text not null,
    state text not null,
    code text,
    epoch bigint not null,
    attempt integer not null,
    failures integer[] not null
);

create function chaos.see_end() returns trigger language plpgsql as $$
declare
    e leasehold.ended := coalesce(new, old);
begin
    insert into chaos.ends_seen (job_id, op, state, code, epoch, attempt, failures)
    values (e.job_id, tg_op, e.state::text, e.failure_code, e.epoch, e.attempt,
        array[e.failures_user, e.failures_system, e.failures_timeout]);
    return null;
end $$;
create trigger chaos_sees after insert or update or delete on leasehold.ended
    for each row execute function chaos.see_end();
