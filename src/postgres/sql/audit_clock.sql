-- audit_clock.sql: the moment that an audit speaks of, and how much there is to look at.
-- A standby shows the primary as it was a moment ago: judged by its own clock, every lease there would look expired.
select case when pg_is_in_recovery() then least(now(), coalesce(pg_last_xact_replay_timestamp(), now())) else now() end as as_of,
       pg_is_in_recovery() as standby, (select count(*) from leasehold.jobs) as jobs
