-- send_signal.sql: every signal from Rust goes through the function that other languages call.
-- $1 job   $2 name   $3 data   $4 key   $5 namespace
select s.signal_id, s.created, s.refused, s.state
from leasehold.send_signal(job => $1, name => $2, data => $3::text::json, key => $4, namespace => $5) s
