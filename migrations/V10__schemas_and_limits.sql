-- V10__schemas_and_limits.sql: JSON Schemas of job types and ops, a limit for signals that nobody takes, and one order
-- in which families of jobs are locked.

-- Schemas by their digest: written once, never changed.
create table leasehold.schemas (
    namespace text not null,
    -- SHA-256 of the canonical form, in hex.
    digest text not null check (digest ~ '^[0-9a-f]{64}$'),
    schema json not null,
    registered_at timestamptz not null default clock_timestamp(),
    primary key (namespace, digest)
);

-- What is asked of jobs that are submitted from now on: of a type of recipes (task '') and of each of its ops.
create table leasehold.schema_routes (
    namespace text not null,
    job_type text not null,
    task text not null,
    input_digest text,
    output_digest text,
    registered_at timestamptz not null default clock_timestamp(),
    primary key (namespace, job_type, task),
    foreign key (namespace, input_digest) references leasehold.schemas (namespace, digest),
    foreign key (namespace, output_digest) references leasehold.schemas (namespace, digest)
);

-- What a job was submitted under: {"op": {"input": digest, "output": digest}}; the job itself is the op ''. Null: nothing.
alter table leasehold.recipes add schemas json;

create or replace function leasehold.add_recipe() returns trigger
language plpgsql as $$
begin
    insert into leasehold.recipes (job_id, namespace, language, execution_version, schemas)
    values (new.job_id, new.namespace, (new.definition->>'language')::integer, leasehold.execution_version(new.payload),
            (select json_object_agg(s.task, json_strip_nulls(json_build_object('input', s.input_digest,
                                                                               'output', s.output_digest)))
             from leasehold.schema_routes s
             where s.namespace = new.namespace and s.job_type = new.route));
    return null;
end $$;

-- Locks the rows of all jobs that a job's end may cancel, the youngest first. A child is younger than its parent, and its
-- end goes on to the row of the parent that waits for it: taken in this order, the two never wait for each other.
create function leasehold.lock_family(job bigint) returns integer
language plpgsql as $$
declare
    member bigint;
    members integer := 0;
begin
    for member in
        with recursive family (job_id) as (
            select k.job_id from leasehold.recipe_children k where k.parent_id = job and k.cancel_with_parent
            union
            select k.job_id from family f
            join leasehold.recipe_children k on k.parent_id = f.job_id and k.cancel_with_parent
        )
        select f.job_id from family f order by f.job_id desc
    loop
        members := members + 1;
        perform from leasehold.leases l where l.job_id = member for update;
        perform from leasehold.waiting w where w.job_id = member for update;
        perform from leasehold.ready r where r.job_id = member for update;
    end loop;
    return members;
end $$;

-- That of V7 with a limit for what nobody takes.
-- refused: not_found, job_ended (with the state), key_conflict (the key stands for another signal) or too_many_signals;
-- nothing is written.
create or replace function leasehold.send_signal(
    job bigint, name text, data json default 'null', key text default null, namespace text default 'default'
) returns table (signal_id bigint, created boolean, refused text, state text)
language plpgsql as $$
#variable_conflict use_column
declare
    stored leasehold.signals%rowtype;
    ended_as text;
    pending bigint;
    pending_bytes bigint;
begin
    perform leasehold.check_name('name', send_signal.name);
    perform leasehold.check_json('data', send_signal.data);
    perform from leasehold.recipes r where r.job_id = job and r.namespace = send_signal.namespace for no key update;
    if not found then
        return query select null::bigint, false, 'not_found', null::text;
        return;
    end if;
    if send_signal.key is not null then
        select * into stored from leasehold.signals s where s.job_id = job and s.key = send_signal.key;
        if found then
            if stored.name = send_signal.name and stored.data::text = send_signal.data::text then
                return query select stored.signal_id, false, null::text, null::text;
            else
                return query select stored.signal_id, false, 'key_conflict', null::text;
            end if;
            return;
        end if;
    end if;
    select e.state::text into ended_as from leasehold.ended e where e.job_id = job;
    if found then
        return query select null::bigint, false, 'job_ended', ended_as;
        return;
    end if;
    select count(*), coalesce(sum(octet_length(s.name) + octet_length(s.data::text)), 0) into pending, pending_bytes
    from leasehold.signals s where s.job_id = job and s.taken is null;
    if pending >= 1000
       or pending_bytes + octet_length(send_signal.name) + octet_length(send_signal.data::text) > 4194304 then
        return query select null::bigint, false, 'too_many_signals', null::text;
        return;
    end if;
    insert into leasehold.signals (job_id, namespace, name, data, key)
    values (job, send_signal.namespace, send_signal.name, send_signal.data, send_signal.key)
    returning * into stored;
    perform leasehold.wake_recipe(job, send_signal.name, null);
    return query select stored.signal_id, true, null::text, null::text;
end $$;
