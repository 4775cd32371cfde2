-- read_logs.sql: a job's output in the order in which it was stored, after a batch that the reader has already.
-- The reader stops at a bound of bytes, so that one page never fills the memory; at least one batch always comes.
select seq, epoch, stream, first_byte, logged_at, data
from (
    select o.seq, o.epoch, o.stream, o.first_byte, o.logged_at, o.data,
           sum(octet_length(o.data)) over (order by o.seq) - octet_length(o.data) as before
    from (
        select * from leasehold.job_logs
        where job_id = $2 and namespace = $1 and seq > $3
        order by seq limit $4
    ) o
) page
where before < 4194304
order by seq
