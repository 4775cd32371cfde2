-- prune_commands.sql: forgets claims that nobody will repeat any more: after a day, far more than two of the longest leases.
-- $1 how many at most
delete from leasehold.commands c
where c.command_id = any (array(
    select o.command_id from leasehold.commands o
    where o.created_at < statement_timestamp() - interval '25 hours'
    order by o.created_at limit $1 for update skip locked))
returning 1
