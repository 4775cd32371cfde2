-- audit_commands.sql: commands that should have been forgotten: they are kept for 25 hours, then a dispatcher prunes them.
-- $1 as of   $2 seconds of patience   $3 lines at most
select c.namespace, null::bigint as job_id,
       format('%s commands are older than 26 hours, the oldest of %s', count(*), to_char(min(c.created_at), 'YYYY-MM-DD')) as detail,
       'keep a `leasehold worker` running: each prunes a bounded number at a time' as remedy
from leasehold.commands c
where c.created_at < $1 - interval '26 hours'
group by c.namespace
order by 1 limit $3
