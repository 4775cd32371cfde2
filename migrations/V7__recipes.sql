-- V7__recipes.sql: RECIPE jobs: the row beside each, its log of events, its signals and its children.
--
-- Inputs, results and payloads are json, never jsonb: it reorders keys and changes numbers.

create type leasehold.event_sort as enum
    ('task', 'timer_set', 'timer_fired', 'signal', 'child_started', 'child_ended', 'reopened');

-- What stands beside the row of a RECIPE job, whatever its state. Whoever writes its log, its signals or what it waits
-- for holds this row: there is one writer at a time.
create table leasehold.recipes (
    job_id bigint primary key,
    namespace text not null,
    -- The version of the language: a worker that does not know it does not claim the job.
    language integer not null,
    -- The version of the payload's key `execution`, where it has a plausible one: the same.
    execution_version integer,
    -- How many events the log has, so the last ordinal, and how many bytes.
    events bigint not null default 0,
    bytes bigint not null default 0,
    -- How often it was reopened.
    era integer not null default 0,
    -- Handoffs in a row; it counts while `events` is what it was at the last of them.
    handoffs integer not null default 0,
    handoff_at bigint not null default 0,
    -- Allocations that declined it in this row, as JSON texts.
    declined text[] not null default '{}',
    -- How often in a row its payload was refused, and under which lease last.
    refusals integer not null default 0,
    refused_epoch bigint,
    refusal text,
    refused_at timestamptz,
    -- The needs that were last published. The hint is exact while `hint_epoch` is the epoch of the job's row: every later
    -- lease raises that, so nothing has to be written to make it stale.
    published_at timestamptz,
    hint_epoch bigint,
    cpu_millis bigint,
    memory_bytes bigint,
    ephemeral_storage_bytes bigint,
    os text,
    architecture text,
    variant text,
    image_reference text,
    image_digest text,
    -- What makes it due, beside time, while `wake_epoch` is the epoch of its row in `waiting`.
    wake_epoch bigint,
    wake_signals text[],
    wake_children bigint[]
);

-- The log; append-only. Each event is written once, under a live lease.
create table leasehold.recipe_events (
    job_id bigint not null,
    ordinal bigint not null,
    namespace text not null,
    -- Which occurrence it is about. (The hash stands in for it in the key: a path may be longer than an index takes.)
    path text not null,
    path_hash bytea not null check (octet_length(path_hash) = 32),
    sort leasehold.event_sort not null,
    era integer not null,
    recorded_at timestamptz not null default clock_timestamp(),
    -- Null for what a person did.
    worker_id text,
    epoch bigint not null,
    -- How much it counts against the limit of the log.
    bytes integer not null,
    -- task
    op text,
    input_hash text,
    attempt integer,
    -- task: succeeded, failed or canceled; child_ended: the child's state
    outcome text,
    -- task, child_ended: the result; signal: what came with it
    value json,
    directive json,
    failure_kind leasehold.failure_kind,
    failure_code text,
    failure_message text,
    exit_code integer,
    -- timer_set
    deadline timestamptz,
    -- signal
    name text,
    signal_id bigint,
    -- child_started, child_ended
    child_id bigint,
    primary key (job_id, ordinal),
    constraint recipe_events_once unique (job_id, era, sort, path_hash)
);

-- Signals, also those that nobody waits for yet. First in, first out for each name.
create table leasehold.signals (
    signal_id bigint generated always as identity primary key,
    job_id bigint not null,
    namespace text not null,
    name text not null,
    data json not null,
    key text,
    sent_at timestamptz not null default clock_timestamp(),
    -- The event that took it.
    taken bigint
);
create unique index signals_by_key on leasehold.signals (job_id, key) where key is not null;
create index signals_pending on leasehold.signals (job_id, name, signal_id) where taken is null;

-- Child jobs. Who waits for a child's end, and the end itself, hold its row here: whichever comes second sees the first.
create table leasehold.recipe_children (
    job_id bigint primary key,
    namespace text not null,
    parent_id bigint not null,
    path text not null,
    -- Cancelled when the parent ends without success.
    cancel_with_parent boolean not null,
    started_at timestamptz not null default clock_timestamp()
);
create index recipe_children_by_parent on leasehold.recipe_children (parent_id, job_id);

create function leasehold.execution_version(payload json) returns integer
language sql immutable as $$
    select case when json_typeof(payload) = 'object' and json_typeof(payload->'execution') = 'object'
                     and payload->'execution'->>'version' ~ '^[0-9]{1,9}$'
                     and json_typeof(payload->'execution'->'version') = 'number'
                then (payload->'execution'->>'version')::integer end
$$;

create function leasehold.add_recipe() returns trigger
language plpgsql as $$
begin
    insert into leasehold.recipes (job_id, namespace, language, execution_version)
    values (new.job_id, new.namespace, (new.definition->>'language')::integer, leasehold.execution_version(new.payload));
    return null;
end $$;
create trigger add_recipe after insert on leasehold.jobs
    for each row when (new.kind = 'RECIPE') execute function leasehold.add_recipe();

-- Makes a job due that waits for this signal, or for this child.
create function leasehold.wake_recipe(job bigint, signal text, child bigint) returns void
language plpgsql as $$
begin
    update leasehold.waiting w
    set due_at = case when w.held_due_at is null then least(w.due_at, clock_timestamp()) else w.due_at end,
        held_due_at = case when w.held_due_at is not null then least(w.held_due_at, clock_timestamp()) end
    from leasehold.recipes r
    where w.job_id = job and r.job_id = job and r.wake_epoch = w.epoch
      and (signal = any (r.wake_signals) or child = any (r.wake_children));
    if found then
        perform pg_notify('leasehold_waiting', '');
    end if;
end $$;

-- As sql/cancel_job.sql, for the child of a parent that ended.
create function leasehold.cancel_child(child bigint) returns void
language plpgsql as $$
begin
    -- A job that moves between the tables is seen in none of them: look again.
    for look in 1..50 loop
        with from_waiting as (
            delete from leasehold.waiting where job_id = child
            returning job_id, namespace, kind, route, workflow, rank, generation, dispatch_attempt, attempt, epoch,
                      failures_user, failures_system, failures_timeout, losses
        ), from_ready as (
            delete from leasehold.ready where job_id = child
            returning job_id, namespace, kind, route, workflow, rank, generation, dispatch_attempt, attempt, epoch,
                      failures_user, failures_system, failures_timeout, losses
        )
        insert into leasehold.ended (job_id, namespace, state, kind, route, workflow, rank, generation,
            dispatch_attempt, attempt, epoch, failures_user, failures_system, failures_timeout, losses, failure_kind,
            failure_code, failure_message)
        select job_id, namespace, 'CANCELED', kind, route, workflow, rank, generation, dispatch_attempt, attempt, epoch,
               failures_user, failures_system, failures_timeout, losses, 'SYSTEM', 'parent_ended',
               'the job that started it ended without success'
        from (select * from from_waiting union all select * from from_ready) stood;
        if found then
            perform pg_notify('leasehold_ended', '');
            return;
        end if;
        update leasehold.leases l
        set cancel_requested_at = coalesce(l.cancel_requested_at, clock_timestamp()),
            cancel_deadline = coalesce(l.cancel_deadline, clock_timestamp()
                + (coalesce((j.definition->>'stop_grace_ms')::bigint, 30000) + l.lease_ms) * interval '1 ms')
        from leasehold.jobs j
        where l.job_id = child and j.job_id = child;
        if found then
            perform pg_notify('leasehold_cancel', child::text);
            return;
        end if;
        if exists (select from leasehold.ended e where e.job_id = child)
           or not exists (select from leasehold.jobs j where j.job_id = child) then
            return;
        end if;
    end loop;
end $$;

-- What an end does to others, whichever statement brings it about: the parent that waits for it is woken, and without
-- success its unfinished children are cancelled.
create function leasehold.after_ends() returns trigger
language plpgsql as $$
declare
    c record;
begin
    -- One question, since almost every end is that of a job without parent or children.
    for c in
        select k.parent_id, k.job_id, false as cancel from leasehold.recipe_children k
        where k.job_id = any (array(select e.job_id from fresh e))
        union all
        select null, k.job_id, true from leasehold.recipe_children k
        where k.parent_id = any (array(select e.job_id from fresh e where e.kind = 'RECIPE' and e.state <> 'COMPLETED'))
          and k.cancel_with_parent
        order by 3, 2
    loop
        if c.cancel then
            perform leasehold.cancel_child(c.job_id);
        else
            -- Whoever is about to wait for it holds this row.
            perform from leasehold.recipe_children k where k.job_id = c.job_id for no key update;
            perform leasehold.wake_recipe(c.parent_id, null, c.job_id);
        end if;
    end loop;
    return null;
end $$;
create trigger after_ends after insert on leasehold.ended
    referencing new table as fresh for each statement execute function leasehold.after_ends();

-- Sends a signal to a recipe, from any language, inside the caller's own transaction.
--   select * from leasehold.send_signal(job => 17, name => 'approved', data => '{"by": "ann"}', key => 'form-3');
-- refused: not_found, job_ended (with the state) or key_conflict (the key stands for another signal); nothing is written.
create function leasehold.send_signal(
    job bigint, name text, data json default 'null', key text default null, namespace text default 'default'
) returns table (signal_id bigint, created boolean, refused text, state text)
language plpgsql as $$
#variable_conflict use_column
declare
    stored leasehold.signals%rowtype;
    ended_as text;
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
    insert into leasehold.signals (job_id, namespace, name, data, key)
    values (job, send_signal.namespace, send_signal.name, send_signal.data, send_signal.key)
    returning * into stored;
    perform leasehold.wake_recipe(job, send_signal.name, null);
    return query select stored.signal_id, true, null::text, null::text;
end $$;

create function leasehold.check_recipe(definition json) returns void
language plpgsql immutable as $$
declare
    part text;
begin
    perform leasehold.check_keys('', definition, array['recipe', 'job_type', 'language', 'digest', 'bundle', 'inputs',
        'require']);
    perform leasehold.check_type('recipe', definition->'recipe', 'string', false);
    perform leasehold.check_name('recipe', definition->>'recipe');
    perform leasehold.check_type('job_type', definition->'job_type', 'string', false);
    if definition->'job_type' is not null then
        perform leasehold.check_name('job_type', definition->>'job_type');
    end if;
    if definition->'language' is null then
        perform leasehold.check_refuse('language', 'must be given');
    end if;
    perform leasehold.check_integer('language', definition->'language', 1, 1, false);
    if coalesce(json_typeof(definition->'digest'), '') <> 'string' or definition->>'digest' !~ '^[0-9a-f]{64}$' then
        perform leasehold.check_refuse('digest', 'must be a SHA-256 in lower-case hex');
    end if;
    if definition->'bundle' is null then
        perform leasehold.check_refuse('bundle', 'must be a JSON object');
    end if;
    foreach part in array array['bundle', 'inputs', 'require'] loop
        if definition->part is not null and json_typeof(definition->part) <> 'object' then
            perform leasehold.check_refuse(part, 'must be a JSON object');
        end if;
    end loop;
    if octet_length((definition->'bundle')::text) > 262144 then
        perform leasehold.check_refuse('bundle', format('is %s bytes long; at most 262144 (256 KiB) are allowed',
            octet_length((definition->'bundle')::text)));
    end if;
end $$;

-- That of V2 with one more kind.
create or replace function leasehold.submit_job(
    -- CONTAINER, HEARTBEAT, HANDLER or RECIPE, and what to do. Left out for a run of a workflow.
    kind text default null,
    definition json default null,
    -- The handler's argument or the client's data; kept byte for byte. Default: the workflow's, else null.
    payload json default null,
    namespace text default 'default',
    workflow text default null,
    -- Higher runs first, -100 to 100. Default: the workflow's, else 0.
    priority integer default null,
    -- Not before this instant.
    run_at timestamptz default null,
    -- A repeat under the same key returns the first job. At most 1024 bytes.
    idempotency_key text default null,
    -- The longest that one attempt may run. Default: the workflow's, else no limit.
    timeout_ms bigint default null,
    -- {"max_user": 3, "max_system": 5, "max_timeout": 1, "backoff_ms": 1000, "backoff_cap_ms": 60000}
    retry json default null,
    -- W3C traceparent of the submitter.
    trace_parent text default null
) returns table (job_id bigint, created boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    flow leasehold.workflows%rowtype;
    key_row leasehold.idempotency_keys%rowtype;
    new_id bigint;
    hash text;
    clock timestamptz;
    due timestamptz;
    max_user integer;
    max_system integer;
    max_timeout integer;
    backoff_ms bigint;
    backoff_cap_ms bigint;
begin
    -- 1. Everything is checked before anything is written.
    perform leasehold.check_name('namespace', submit_job.namespace);
    if workflow = 'adhoc' then
        workflow := null;
    end if;
    if workflow is not null then
        perform leasehold.check_name('workflow', workflow);
        if kind is not null or definition is not null then
            perform leasehold.check_refuse('definition', 'a run of a workflow has the workflow''s definition; leave it out');
        end if;
    else
        if kind is null or kind not in ('CONTAINER', 'HEARTBEAT', 'HANDLER', 'RECIPE') then
            perform leasehold.check_refuse('kind', 'must be CONTAINER, HEARTBEAT, HANDLER or RECIPE');
        elsif definition is null or json_typeof(definition) <> 'object' then
            perform leasehold.check_refuse('definition', 'must be a JSON object');
        end if;
        perform leasehold.check_json('definition', definition);
        if kind = 'CONTAINER' then
            perform leasehold.check_container(definition);
        elsif kind = 'HEARTBEAT' then
            perform leasehold.check_heartbeat(definition);
        elsif kind = 'RECIPE' then
            perform leasehold.check_recipe(definition);
        else
            perform leasehold.check_keys('', definition, array['handler']);
            perform leasehold.check_type('handler', definition->'handler', 'string', false);
            perform leasehold.check_name('handler', definition->>'handler');
        end if;
    end if;
    if payload is not null then
        perform leasehold.check_json('payload', payload);
        if kind = 'RECIPE' and json_typeof(payload) not in ('object', 'null') then
            perform leasehold.check_refuse('payload', 'of a recipe must be a JSON object, or null');
        end if;
    end if;
    if priority not between -100 and 100 then
        perform leasehold.check_refuse('priority', 'must be between -100 and 100');
    elsif run_at < '1970-01-01T00:00:00Z' or run_at >= '2200-01-01T00:00:00Z' then
        perform leasehold.check_refuse('run_at', 'must be between the years 1970 and 2199');
    elsif timeout_ms not between 1 and 31536000000 then
        perform leasehold.check_refuse('timeout_ms', 'must be between 1 and 31536000000 (365 days)');
    elsif idempotency_key = '' or octet_length(idempotency_key) > 1024 then
        perform leasehold.check_refuse('idempotency_key',
            format('is %s bytes long; 1 to 1024 are allowed', octet_length(idempotency_key)));
    elsif idempotency_key ~ '[\u0001-\u001f\u007f-\u009f]' then
        perform leasehold.check_refuse('idempotency_key', 'must not contain control characters');
    elsif trace_parent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' then
        perform leasehold.check_refuse('trace_parent', 'is not a W3C traceparent');
    end if;
    if retry is not null then
        if json_typeof(retry) <> 'object' then
            perform leasehold.check_refuse('retry', 'must be a JSON object');
        end if;
        perform leasehold.check_json('retry', retry);
        perform leasehold.check_keys('retry.', retry, array['max_user', 'max_system', 'max_timeout', 'backoff_ms', 'backoff_cap_ms']);
        perform leasehold.check_integer('retry.max_user', retry->'max_user', 1, 1000, true);
        perform leasehold.check_integer('retry.max_system', retry->'max_system', 1, 1000, true);
        perform leasehold.check_integer('retry.max_timeout', retry->'max_timeout', 1, 1000, true);
        perform leasehold.check_integer('retry.backoff_ms', retry->'backoff_ms', 0, 86400000, true);
        perform leasehold.check_integer('retry.backoff_cap_ms', retry->'backoff_cap_ms', 0, 2592000000, true);
        max_user := (retry->>'max_user')::integer;
        max_system := (retry->>'max_system')::integer;
        max_timeout := (retry->>'max_timeout')::integer;
        backoff_ms := (retry->>'backoff_ms')::bigint;
        backoff_cap_ms := (retry->>'backoff_cap_ms')::bigint;
        if backoff_cap_ms < backoff_ms then
            perform leasehold.check_refuse('retry.backoff_cap_ms', 'must not be less than backoff_ms');
        end if;
    end if;

    -- 2. The same key is the same job, whichever of two submitters comes first: the other waits at the insert.
    if idempotency_key is not null then
        hash := leasehold.request_hash(kind, definition::text, payload::text, workflow, priority, run_at, timeout_ms,
                                       max_user, max_system, max_timeout, backoff_ms, backoff_cap_ms);
        loop
            select * into key_row from leasehold.idempotency_keys k
            where k.namespace = submit_job.namespace and k.key = idempotency_key;
            if found then
                if key_row.request_hash <> hash then
                    raise exception using errcode = 'LH002', detail = key_row.job_id::text,
                        message = format('idempotency_conflict: the key was used for another request, which is job %s', key_row.job_id);
                end if;
                return query select key_row.job_id, false;
                return;
            end if;
            new_id := coalesce(new_id, nextval('leasehold.jobs_job_id_seq'));
            insert into leasehold.idempotency_keys (namespace, key, job_id, request_hash)
            values (submit_job.namespace, idempotency_key, new_id, hash)
            on conflict do nothing;
            exit when found;
        end loop;
    end if;
    new_id := coalesce(new_id, nextval('leasehold.jobs_job_id_seq'));

    -- 3. The lock orders this run before or after every change of the workflow's generation.
    if workflow is not null then
        select * into flow from leasehold.workflows w
        where w.namespace = submit_job.namespace and w.name = submit_job.workflow for share;
        if not found then
            raise exception using errcode = 'LH003', message = format('workflow_not_found: there is no workflow %s', to_json(workflow));
        elsif flow.state = 'TERMINATED' then
            raise exception using errcode = 'LH004', message = format('workflow_terminated: workflow %s takes no more runs', to_json(workflow));
        end if;
    else
        flow.name := 'adhoc';
        flow.generation := 1;
        flow.state := 'ACTIVE';
        flow.kind := kind;
        flow.route := case kind when 'RECIPE' then coalesce(definition->>'job_type', 'recipe')
                                else coalesce(definition->>'handler', '') end;
        flow.definition := definition;
        flow.payload := 'null';
        flow.priority := 0;
    end if;
    priority := coalesce(submit_job.priority, flow.priority);

    insert into leasehold.jobs (job_id, namespace, workflow, generation, kind, route, definition, payload, priority,
                                timeout_ms, max_user, max_system, max_timeout, backoff_ms, backoff_cap_ms, trace_parent)
    values (new_id, submit_job.namespace, flow.name, flow.generation, flow.kind, flow.route, flow.definition,
            coalesce(submit_job.payload, flow.payload), submit_job.priority, coalesce(submit_job.timeout_ms, flow.timeout_ms),
            coalesce(max_user, flow.max_user), coalesce(max_system, flow.max_system), coalesce(max_timeout, flow.max_timeout),
            coalesce(backoff_ms, flow.backoff_ms), coalesce(backoff_cap_ms, flow.backoff_cap_ms), submit_job.trace_parent);

    -- 4. Due at once: QUEUED at once. A paused workflow holds its runs until it is resumed.
    clock := clock_timestamp();
    due := greatest(submit_job.run_at, clock);
    if flow.state = 'PAUSED' or due > clock then
        insert into leasehold.waiting (job_id, namespace, due_at, held_due_at, kind, route, workflow, overlap_limit, rank, generation)
        values (new_id, submit_job.namespace, case when flow.state = 'PAUSED' then 'infinity' else due end,
                case when flow.state = 'PAUSED' then due end, flow.kind, flow.route, flow.name, flow.overlap_limit,
                -submit_job.priority, flow.generation);
        if flow.state <> 'PAUSED' then
            perform pg_notify('leasehold_waiting', '');
        end if;
    else
        insert into leasehold.ready (job_id, namespace, due_at, kind, route, workflow, overlap_limit, rank, generation, dispatch_attempt)
        values (new_id, submit_job.namespace, clock, flow.kind, flow.route, flow.name, flow.overlap_limit,
                -submit_job.priority, flow.generation, 1);
        perform pg_notify('leasehold_ready', '');
    end if;
    return query select new_id, true;
end $$;

-- submit_job with its refusals as an answer: a parent learns of them without losing its statement.
create function leasehold.submit_child(
    kind text, definition json, payload json, namespace text, workflow text, priority integer, run_at timestamptz,
    idempotency_key text, timeout_ms bigint, retry json, trace_parent text,
    out job_id bigint, out refused text, out reason text)
language plpgsql as $$
begin
    select s.job_id into submit_child.job_id
    from leasehold.submit_job(kind, definition, payload, namespace, workflow, priority, run_at, idempotency_key,
                              timeout_ms, retry, trace_parent) s;
exception when sqlstate 'LH001' or sqlstate 'LH002' or sqlstate 'LH003' or sqlstate 'LH004' then
    job_id := null;
    refused := case sqlstate when 'LH001' then 'invalid' when 'LH002' then 'idempotency_conflict'
                             when 'LH003' then 'workflow_not_found' else 'workflow_terminated' end;
    reason := sqlerrm;
end $$;
