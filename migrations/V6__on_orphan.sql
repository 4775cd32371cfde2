-- V6__on_orphan.sql: a CONTAINER definition may say what becomes of its container when the lease is lost. The function is that
-- of V2 with one more key.

create or replace function leasehold.check_container(definition json) returns void
language plpgsql immutable as $$
declare
    label constant text := '[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?';
    part constant text := '[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*';
    image text;
    bad text;
    entry record;
begin
    perform leasehold.check_keys('', definition, array['image', 'command', 'entrypoint', 'env', 'workdir', 'user',
        'memory_bytes', 'cpu_millis', 'pids_limit', 'network', 'stop_grace_ms', 'pull', 'log_quota_bytes', 'on_orphan']);
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
    perform leasehold.check_type('on_orphan', definition->'on_orphan', 'string', false);
    if definition->>'on_orphan' not in ('stop', 'adopt') then
        perform leasehold.check_refuse('on_orphan', 'must be stop or adopt');
    end if;
    perform leasehold.check_integer('memory_bytes', definition->'memory_bytes', 6291456, 1125899906842624, true);
    perform leasehold.check_integer('cpu_millis', definition->'cpu_millis', 10, 1024000, true);
    perform leasehold.check_integer('pids_limit', definition->'pids_limit', 1, 4194304, true);
    perform leasehold.check_integer('stop_grace_ms', definition->'stop_grace_ms', 0, 3600000, true);
    perform leasehold.check_integer('log_quota_bytes', definition->'log_quota_bytes', 0, 68719476736, true);
end $$;
