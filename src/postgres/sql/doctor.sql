-- doctor.sql: everything that `leasehold doctor` looks at, in one snapshot.
select clock_timestamp() as clock,
       current_setting('server_version') as version,
       current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on' as crash_safe,
       current_setting('synchronous_standby_names') <> '' as wants_standby,
       (select coalesce(string_agg(coalesce(nullif(r.application_name, ''), r.client_addr::text, 'unnamed'), ', '), '')
        from pg_stat_replication r where r.sync_state in ('sync', 'quorum')) as synchronous_names,
       f.system_id, f.timeline, f.cluster_generation, f.raised_at, f.raised_because,
       greatest(coalesce(extract(epoch from nullif(f.recovery_held_until, '-infinity') - clock_timestamp()), 0), 0)::float8
           as recovery_held_seconds,
       (select count(*) from pg_stat_replication) as standbys,
       (select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')) as synchronous_standbys,
       current_setting('max_connections')::integer as max_connections,
       (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
       (select coalesce(extract(epoch from max(clock_timestamp() - coalesce(xact_start, state_change))), 0)::float8
        from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()
          and backend_type = 'client backend') as oldest_snapshot_seconds,
       (select pid from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()
          and backend_type = 'client backend' order by coalesce(xact_start, state_change) limit 1) as oldest_snapshot_pid,
       (select coalesce(extract(epoch from max(clock_timestamp() - prepared)), 0)::float8 from pg_prepared_xacts)
           as oldest_prepared_seconds,
       (select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables
        where schemaname = 'leasehold' and relname in ('waiting', 'ready', 'leases')) as dead_rows,
       (select coalesce(sum(n_live_tup), 0)::bigint from pg_stat_user_tables
        where schemaname = 'leasehold' and relname in ('waiting', 'ready', 'leases')) as live_rows,
       (select count(*) from leasehold.leases where namespace = $1) as running,
       (select count(*) from leasehold.leases where namespace = $1 and lease_expires_at <= clock_timestamp()) as expired,
       -- Written by hand: such a row must not keep the rest from being told.
       (select count(*) from leasehold.leases where namespace = $1 and not isfinite(lease_expires_at)) as timeless,
       (select coalesce(extract(epoch from clock_timestamp() - min(lease_expires_at)), 0)::float8
        from leasehold.leases where namespace = $1 and lease_expires_at <= clock_timestamp() and isfinite(lease_expires_at)) as expired_seconds,
       (select count(*) from leasehold.waiting where namespace = $1 and due_at < clock_timestamp() - interval '10 seconds')
           as overdue,
       (select count(*) from leasehold.waiting where namespace = $1 and blocked_by is not null) as blocked,
       (select count(*) from leasehold.waiting where namespace = $1 and held_due_at is not null) as held,
       (select count(*) from leasehold.ready where namespace = $1) as queued,
       (select count(*) from leasehold.ready where namespace = $1 and kind = 'CONTAINER') as containers,
       (select coalesce(extract(epoch from clock_timestamp() - min(due_at)), 0)::float8
        from leasehold.ready where namespace = $1 and kind = 'CONTAINER') as containers_seconds,
       (select coalesce(extract(epoch from clock_timestamp() - min(due_at)), 0)::float8
        from leasehold.ready where namespace = $1) as queued_seconds,
       (select count(*) from (
            select r.namespace, r.workflow, r.generation from leasehold.ready r where r.namespace = $1 and r.workflow <> 'adhoc'
            union all
            select q.namespace, q.workflow, q.generation from leasehold.waiting q
            where q.namespace = $1 and q.workflow <> 'adhoc' and q.held_due_at is null
              and (q.kind <> 'RECIPE' or q.attempt = 0)) job
        join leasehold.workflows w on w.namespace = job.namespace and w.name = job.workflow
        where job.generation < w.generation) as stale,
       (select count(*) from leasehold.workers where namespace = $1 and stopped_at is null
          and seen_at > clock_timestamp() - interval '30 seconds') as workers
from leasehold.fleet f
