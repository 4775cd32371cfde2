-- V5__servers_and_fences.sql: which server this database lives on, and a fence for the tables of other programs.

-- The server on which the fleet was last seen: PostgreSQL's system identifier, and the timeline, which every promotion
-- raises. A server that is on another one has an own past since: what its predecessor had committed may be missing.
alter table leasehold.fleet
    add column system_id bigint,
    add column timeline bigint,
    -- When and why cluster_generation was last raised: 'promotion', or 'another server' (a restored or moved database).
    add column raised_at timestamptz,
    add column raised_because text,
    -- No lease is taken over before: a holder may have a longer one from the predecessor than this server knows of, and
    -- clocks may differ.
    add column recovery_held_until timestamptz not null default '-infinity';

-- The timeline that this server writes on. (The control file's lags behind until the first checkpoint.)
create function leasehold.server_timeline() returns bigint
language sql volatile as $$
    select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
$$;

update leasehold.fleet
set system_id = (select system_identifier from pg_control_system()), timeline = leasehold.server_timeline();
alter table leasehold.fleet alter column system_id set not null, alter column timeline set not null;

-- Every connection begins with this, and says which server it knows to be the fleet's latest. SQLSTATEs that it raises:
--   25006  a standby, or a server that takes no writes now
--   LH011  an earlier primary: the fleet has moved on
-- A server that is new to the fleet raises the cluster's generation, once. The generation follows the timeline, so that
-- it also rises where the raise of an earlier promotion was itself lost in the next one.
create function leasehold.meet_server(
    known_fleet uuid, known_system bigint, known_timeline bigint, known_generation bigint,
    out fleet uuid, out system bigint, out line bigint, out generation bigint)
language plpgsql volatile as $$
declare
    f leasehold.fleet;
    known boolean;
begin
    if pg_is_in_recovery() then
        raise exception using errcode = '25006', message = 'the server is a standby and takes no writes',
            hint = 'Let DATABASE_URL name the primary, or all servers, separated by commas.';
    end if;
    system := (select c.system_identifier from pg_control_system() c);
    line := leasehold.server_timeline();
    select * into strict f from leasehold.fleet;
    known := coalesce(f.fleet_id = known_fleet, false);
    if (f.system_id = system and f.timeline > line) or (known and known_system = system and known_timeline > line) then
        perform leasehold.refuse_server(line, greatest(f.timeline, known_timeline));
    end if;
    if (f.system_id, f.timeline) is distinct from (system, line) then
        select * into strict f from leasehold.fleet for no key update;
    end if;
    if (f.system_id, f.timeline) is distinct from (system, line) then
        update leasehold.fleet u
        set system_id = system, timeline = line, raised_at = clock_timestamp(),
            raised_because = case when f.system_id = system then 'promotion' else 'another server' end,
            cluster_generation =
                greatest(f.cluster_generation + 1, case when known then known_generation + 1 end, line),
            recovery_held_until = greatest(u.recovery_held_until,
                clock_timestamp() + (select coalesce(max(l.lease_ms), 0) from leasehold.leases l) * interval '1 millisecond')
        returning u.* into f;
    end if;
    if known and f.cluster_generation < known_generation then
        perform leasehold.refuse_server(line, known_timeline);
    end if;
    fleet := f.fleet_id;
    generation := f.cluster_generation;
end $$;

create function leasehold.refuse_server(line bigint, latest bigint) returns void
language plpgsql as $$
begin
    raise exception using errcode = 'LH011',
        message = format('the server was replaced: it is on timeline %s, and the fleet has moved on to %s', line, latest),
        hint = 'Rebuild it as a standby of the present primary (pg_rewind, pg_basebackup), and let DATABASE_URL name that one.';
end $$;

-- The top part of every epoch. A session that a pooler, or a promotion under its hands, has put on a server that the
-- fleet has not met must not grant anything: its epochs might be those of lost grants once more.
create function leasehold.cluster_generation() returns bigint
language plpgsql volatile as $$
declare
    f leasehold.fleet;
begin
    select * into strict f from leasehold.fleet;
    if f.timeline <> leasehold.server_timeline() then
        raise exception using errcode = 'LH010', message = 'the server was promoted; connect anew';
    end if;
    return f.cluster_generation;
end $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Fences for whoever writes to tables beside ours. Both run with their owner's rights, so that an application's role
-- needs no right to our tables and cannot read a token:
--   grant usage on schema leasehold to app;
--   grant execute on function leasehold.fence(bigint, uuid), leasehold.fence_epoch(bigint, bigint) to app;
-- SQLSTATE that they raise: LH020, the lease is not live.
-- ---------------------------------------------------------------------------------------------------------------------

-- Locks the lease to the end of the transaction, and returns its epoch: renewals go on meanwhile, while its end, and a
-- takeover, wait. What the transaction writes is thus written by the holder of a live lease, or not at all.
create function leasehold.fence(job bigint, token uuid) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    l record;
begin
    perform from leasehold.leases h where h.job_id = job for key share;
    -- Once more, in a snapshot younger than the lock.
    select h.token = fence.token and h.lease_expires_at > clock_timestamp() as live, h.epoch
    into l from leasehold.leases h where h.job_id = job;
    if l.live is distinct from true then
        perform leasehold.refuse_fence(job);
    end if;
    return l.epoch;
end $$;

-- The same for a program that was handed the epoch only (LEASEHOLD_FENCING_EPOCH): refuses it once the job was claimed
-- again. An epoch is no secret: this holds off the late, not the malicious.
create function leasehold.fence_epoch(job bigint, epoch bigint) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    l record;
begin
    perform from leasehold.leases h where h.job_id = job for key share;
    select fence_epoch.epoch between h.claim_epoch and h.epoch and h.lease_expires_at > clock_timestamp() as live
    into l from leasehold.leases h where h.job_id = job;
    if l.live is distinct from true then
        perform leasehold.refuse_fence(job);
    end if;
end $$;

create function leasehold.refuse_fence(job bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using errcode = 'LH020', message = format('the lease of job %s is not live', job),
        hint = 'Another holder may be at work: stop, and write nothing more for this job.';
end $$;

revoke execute on function leasehold.fence(bigint, uuid), leasehold.fence_epoch(bigint, bigint) from public;
