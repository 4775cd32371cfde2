-- V8__unhealthy_since.sql: since when a node is UNHEALTHY. Like a silent one it counts as unavailable only once that has lasted.

alter table leasehold.nodes add column unhealthy_since timestamptz;

update leasehold.nodes set unhealthy_since = clock_timestamp() where state = 'UNHEALTHY';

-- A trigger, so that it is right whichever statement, of whichever version of the program, changes the state.
create function leasehold.note_unhealthy() returns trigger
language plpgsql as $$
begin
    new.unhealthy_since := case when new.state = 'UNHEALTHY' then clock_timestamp() end;
    return new;
end $$;

create trigger note_unhealthy before update of state on leasehold.nodes
for each row when (new.state is distinct from old.state) execute function leasehold.note_unhealthy();
