-- notify.sql: a hint without a payload, sent when the transaction commits.
select pg_notify($1, '')
