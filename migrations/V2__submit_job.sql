-- V2__submit_job.sql: submission from any language, inside the caller's own transaction.
--
--   select * from leasehold.submit_job(kind => 'CONTAINER', definition => '{"image": "busybox", "command": ["echo", "hi"]}');
--   select * from leasehold.submit_job(workflow => 'nightly-report', idempotency_key => 'report-2026-11-29');
--
-- The function checks everything itself, since not every caller has been checked before, and writes nothing
-- when it refuses. SQLSTATEs that it raises:
--   LH001  the request breaks a rule: the message is `field: reason`, the error's column is the field
--   LH002  idempotency_conflict: the key stands for another request; the detail is that request's job id
--   LH003  workflow_not_found          LH004  workflow_terminated
-- The functions named check_... and request_hash are its parts, and private.

create function leasehold.check_refuse(field text, reason text) returns void
language plpgsql immutable as $$
begin
    raise exception using errcode = 'LH001', message = field || ': ' || reason, column = field;
end $$;

create function leasehold.check_name(field text, name text) returns void
language plpgsql immutable as $$
begin
    if name is null or name = '' then
        perform leasehold.check_refuse(field, 'must not be empty');
    elsif octet_length(name) > 200 then
        perform leasehold.check_refuse(field,
            format('is %s bytes long; at most 200 are allowed', octet_length(name)));
    elsif name ~ '[\u0001-\u001f\u007f-\u009f]' then
        perform leasehold.check_refuse(field, 'must not contain control characters');
    elsif name ~ '^[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]'
       or name ~ '[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]$' then
        perform leasehold.check_refuse(field, 'must not begin or end with white space');
    end if;
end $$;

-- Rules for all JSON that is kept: it must be readable by everybody who will be handed it later.
create function leasehold.check_json(field text, document json) returns void
language plpgsql immutable as $$
declare
    body text := document::text;
    deepest integer;
    twice text;
begin
    if octet_length(body) > 1048576 then
        perform leasehold.check_refuse(field,
            format('is %s bytes long; at most 1048576 (1 MiB) are allowed', octet_length(body)));
    end if;
    if position('\u' in body) > 0 then
        -- An escaped backslash is no start of an escape: take such pairs out before looking for \u.
        body := replace(body, '\\', '/');
        if position('\u0000' in body) > 0 then
            perform leasehold.check_refuse(field, 'must not contain NUL (\u0000)');
        end if;
        body := regexp_replace(body, '\\u[dD][89abAB][[:xdigit:]]{2}\\u[dD][c-fC-F][[:xdigit:]]{2}', '/', 'g');
        if body ~ '\\u[dD][89abcdefABCDEF][[:xdigit:]]{2}' then
            perform leasehold.check_refuse(field, 'must not contain half of a surrogate pair');
        end if;
    end if;
    if json_typeof(document) not in ('object', 'array') then
        return;
    end if;
    with recursive node (value, kind, depth) as (
        select document, json_typeof(document), 1
        union all
        select child.value, json_typeof(child.value), node.depth + 1
        from node
        cross join lateral (
            select member.value from json_each(case when node.kind = 'object' then node.value end) member
            union all
            select element.value from json_array_elements(case when node.kind = 'array' then node.value end) element
        ) child
        where node.depth <= 100 and json_typeof(child.value) in ('object', 'array')
    )
    select max(node.depth), min(doubled.key)
    into deepest, twice
    from node
    left join lateral (
        select keys.key from json_object_keys(case when node.kind = 'object' then node.value end) keys (key)
        group by keys.key having count(*) > 1 limit 1
    ) doubled on true;
    if deepest > 100 then
        perform leasehold.check_refuse(field, 'is nested more than 100 deep');
    elsif twice is not null then
        perform leasehold.check_refuse(field, format('has the key %s more than once', to_json(twice)));
    end if;
end $$;

-- A whole number in JSON, between two bounds; null passes where it may be left out.
create function leasehold.check_integer(field text, value json, low bigint, high bigint, optional boolean) returns void
language plpgsql immutable as $$
begin
    if value is null or (optional and json_typeof(value) = 'null') then
        return;
    elsif json_typeof(value) <> 'number' or value::text !~ '^\s*-?[0-9]+\s*$' then
        perform leasehold.check_refuse(field, 'must be a whole number');
    elsif length(value::text) > 25 or value::text::numeric not between low and high then
        perform leasehold.check_refuse(field, format('must be between %s and %s', low, high));
    end if;
end $$;

create function leasehold.check_type(field text, value json, wanted text, optional boolean) returns void
language plpgsql immutable as $$
begin
    if value is not null and json_typeof(value) <> wanted and not (optional and json_typeof(value) = 'null') then
        perform leasehold.check_refuse(field, format('must be a JSON %s', wanted));
    end if;
end $$;

create function leasehold.check_keys(prefix text, value json, known text[]) returns void
language plpgsql immutable as $$
declare
    unknown text;
begin
    select keys.key into unknown from json_object_keys(value) keys (key) where keys.key <> all (known) limit 1;
    if unknown is not null then
        perform leasehold.check_refuse(prefix || unknown,
            format('is not known; known are %s', array_to_string(known, ', ')));
    end if;
end $$;

create function leasehold.check_container(definition json) returns void
language plpgsql immutable as $$
declare
    label constant text := '[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?';
    part constant text := '[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*';
    image text;
    bad text;
    entry record;
begin
    perform leasehold.check_keys('', definition, array['image', 'command', 'entrypoint', 'env', 'workdir', 'user',
        'memory_bytes', 'cpu_millis', 'pids_limit', 'network', 'stop_grace_ms', 'pull', 'log_quota_bytes']);
    if definition->'image' is null then
        perform leasehold.check_refuse('image', 'must not be empty');
    end if;
    perform leasehold.check_type('image', definition->'image', 'string', false);
    image := definition->>'image';
    -- Docker's grammar: a first part is a host if it has a dot or a port, or is localhost.
    if image !~ ('^(?:(?:localhost|' || label || '(?:\.' || label || ')+|' || label || '(?=:)|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?/)?'
                 || part || '(?:/' || part || ')*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?'
                 || '(?:@(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}))?$') then
        perform leasehold.check_refuse('image', format('%s is not an image reference', to_json(image)));
    elsif length(regexp_replace(regexp_replace(image, '@.*$', ''), ':[^:/]*$', '')) > 255 then
        perform leasehold.check_refuse('image', 'the name is longer than 255 characters');
    end if;
    foreach bad in array array['command', 'entrypoint'] loop
        perform leasehold.check_type(bad, definition->bad, 'array', bad = 'entrypoint');
        if json_typeof(definition->bad) = 'array' then
            for entry in select argument, at from json_array_elements(definition->bad) with ordinality list (argument, at) loop
                perform leasehold.check_type(format('%s[%s]', bad, entry.at - 1), entry.argument, 'string', false);
                if octet_length(entry.argument #>> '{}') > 131071 then
                    perform leasehold.check_refuse(format('%s[%s]', bad, entry.at - 1), 'is longer than 131071 bytes');
                end if;
            end loop;
        end if;
    end loop;
    perform leasehold.check_type('env', definition->'env', 'object', false);
    if definition->'env' is not null then
        for entry in select key, value from json_each(definition->'env') loop
            perform leasehold.check_type('env.' || entry.key, entry.value, 'string', false);
            if entry.key = '' or position('=' in entry.key) > 0 then
                perform leasehold.check_refuse('env.' || entry.key, 'a name must not be empty or contain `=`');
            elsif octet_length(entry.key) + octet_length(entry.value #>> '{}') + 2 > 131072 then
                perform leasehold.check_refuse('env.' || entry.key, format(
                    'NAME=value is %s bytes long; at most 131071 fit into a process''s environment',
                    octet_length(entry.key) + octet_length(entry.value #>> '{}') + 1));
            end if;
        end loop;
    end if;
    perform leasehold.check_type('workdir', definition->'workdir', 'string', true);
    if definition->>'workdir' !~ '^/' then
        perform leasehold.check_refuse('workdir', 'must be an absolute path');
    end if;
    perform leasehold.check_type('user', definition->'user', 'string', true);
    if definition->>'user' is not null then
        perform leasehold.check_name('user', definition->>'user');
    end if;
    perform leasehold.check_type('network', definition->'network', 'string', true);
    if definition->>'network' !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$' then
        perform leasehold.check_refuse('network', 'must be the name of an engine network');
    end if;
    perform leasehold.check_type('pull', definition->'pull', 'string', false);
    if definition->>'pull' not in ('missing', 'always', 'never') then
        perform leasehold.check_refuse('pull', 'must be missing, always or never');
    end if;
    perform leasehold.check_integer('memory_bytes', definition->'memory_bytes', 6291456, 1125899906842624, true);
    perform leasehold.check_integer('cpu_millis', definition->'cpu_millis', 10, 1024000, true);
    perform leasehold.check_integer('pids_limit', definition->'pids_limit', 1, 4194304, true);
    perform leasehold.check_integer('stop_grace_ms', definition->'stop_grace_ms', 0, 3600000, true);
    perform leasehold.check_integer('log_quota_bytes', definition->'log_quota_bytes', 0, 68719476736, true);
end $$;

create function leasehold.check_heartbeat(definition json) returns void
language plpgsql immutable as $$
declare
    url text := definition->>'url';
    authority text;
    entry record;
begin
    perform leasehold.check_keys('', definition, array['url', 'method', 'expected_status', 'headers', 'body', 'body_match',
        'max_redirects', 'timeout_ms', 'insecure_skip_tls_verify']);
    if definition->'url' is null then
        perform leasehold.check_refuse('url', 'must not be empty');
    end if;
    perform leasehold.check_type('url', definition->'url', 'string', false);
    if octet_length(url) > 8192 then
        perform leasehold.check_refuse('url', 'is longer than 8192 bytes');
    elsif url ~ '[\u0001-\u0020\u007f\\]' then
        perform leasehold.check_refuse('url', 'must not contain white space, control characters or backslashes');
    elsif url !~* '^https?://' then
        perform leasehold.check_refuse('url', 'must begin with http:// or https://');
    end if;
    authority := substring(url from '^[A-Za-z]+://([^/?#]*)');
    if position('@' in authority) > 0 then
        perform leasehold.check_refuse('url', 'must not carry a user name or password');
    elsif authority !~ '^(?:\[[0-9A-Fa-f:.]+\]|[^:@\[\]%<>^|"]+)(?::[0-9]{1,5})?$'
       or coalesce(substring(authority from ':([0-9]+)$')::integer, 1) not between 1 and 65535 then
        perform leasehold.check_refuse('url', 'has no usable host and port');
    end if;
    perform leasehold.check_type('method', definition->'method', 'string', false);
    if definition->>'method' not in ('GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS') then
        perform leasehold.check_refuse('method', 'must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS');
    end if;
    perform leasehold.check_type('expected_status', definition->'expected_status', 'array', false);
    if definition->'expected_status' is not null then
        if json_array_length(definition->'expected_status') > 100 then
            perform leasehold.check_refuse('expected_status', 'has more than 100 entries');
        end if;
        for entry in select status, at from json_array_elements(definition->'expected_status') with ordinality list (status, at) loop
            perform leasehold.check_integer(format('expected_status[%s]', entry.at - 1), entry.status, 100, 599, false);
        end loop;
    end if;
    perform leasehold.check_type('headers', definition->'headers', 'object', false);
    if definition->'headers' is not null then
        if (select count(*) from json_object_keys(definition->'headers')) > 100 then
            perform leasehold.check_refuse('headers', 'has more than 100 entries');
        end if;
        for entry in select key, value from json_each(definition->'headers') loop
            perform leasehold.check_type('headers.' || entry.key, entry.value, 'string', false);
            if entry.key !~ '^[-!#$%&''*+.^_`|~0-9A-Za-z]{1,200}$' then
                perform leasehold.check_refuse('headers.' || entry.key, 'is not the name of an HTTP header');
            elsif octet_length(entry.value #>> '{}') > 8192 or entry.value #>> '{}' !~ '^[\u0009\u0020-\u007e]*$' then
                perform leasehold.check_refuse('headers.' || entry.key,
                    'a value is at most 8192 characters of printable ASCII, without line breaks');
            end if;
        end loop;
    end if;
    perform leasehold.check_type('body', definition->'body', 'string', true);
    perform leasehold.check_type('body_match', definition->'body_match', 'string', true);
    if octet_length(definition->>'body_match') > 4096 then
        perform leasehold.check_refuse('body_match', 'is longer than 4096 bytes');
    end if;
    perform leasehold.check_integer('max_redirects', definition->'max_redirects', 0, 10, false);
    perform leasehold.check_integer('timeout_ms', definition->'timeout_ms', 1, 900000, false);
    perform leasehold.check_type('insecure_skip_tls_verify', definition->'insecure_skip_tls_verify', 'boolean', false);
end $$;

-- Over everything that the submitter asked for, except its trace: that is new at every repeat.
create function leasehold.request_hash(
    kind text, definition text, payload text, workflow text, priority integer, run_at timestamptz, timeout_ms bigint,
    max_user integer, max_system integer, max_timeout integer, backoff_ms bigint, backoff_cap_ms bigint
) returns text
language sql immutable parallel safe as $$
    select encode(sha256(convert_to(json_build_array(kind, definition, payload, workflow, priority,
        extract(epoch from run_at), timeout_ms, max_user, max_system, max_timeout, backoff_ms, backoff_cap_ms)::text,
        'UTF8')), 'hex')
$$;

create function leasehold.submit_job(
    -- CONTAINER, HEARTBEAT or HANDLER, and what to do. Left out for a run of a workflow.
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
        if kind is null or kind not in ('CONTAINER', 'HEARTBEAT', 'HANDLER') then
            perform leasehold.check_refuse('kind', 'must be CONTAINER, HEARTBEAT or HANDLER');
        elsif definition is null or json_typeof(definition) <> 'object' then
            perform leasehold.check_refuse('definition', 'must be a JSON object');
        end if;
        perform leasehold.check_json('definition', definition);
        if kind = 'CONTAINER' then
            perform leasehold.check_container(definition);
        elsif kind = 'HEARTBEAT' then
            perform leasehold.check_heartbeat(definition);
        else
            perform leasehold.check_keys('', definition, array['handler']);
            perform leasehold.check_type('handler', definition->'handler', 'string', false);
            perform leasehold.check_name('handler', definition->>'handler');
        end if;
    end if;
    if payload is not null then
        perform leasehold.check_json('payload', payload);
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
        flow.route := coalesce(definition->>'handler', '');
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

comment on function leasehold.submit_job is
    'Submits one job in the caller''s transaction. Public; every parameter is named in migration V2.';
