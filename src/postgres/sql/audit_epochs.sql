-- audit_epochs.sql: each grant of a job has an epoch of its own, one more than the last or the first of a new cluster
-- generation; it begins after the last lease ended, and no attempt is counted backwards.
-- $1 as of   $2 seconds of patience   $3 lines at most
with grants as (
    select h.job_id, h.namespace, h.epoch, h.granted_at, h.ended_at, h.attempt from leasehold.lease_history h
    union all
    select l.job_id, l.namespace, l.epoch, l.granted_at, null, l.attempt from leasehold.leases l
), steps as (
    select g.*, lag(g.epoch) over w as epoch_before, lag(g.ended_at) over w as ended_before,
           lag(g.attempt) over w as attempt_before,
           -- A promoted server's clock is another one.
           lag(g.epoch >> 40) over w = g.epoch >> 40 as same_clock
    from grants g
    window w as (partition by g.job_id order by g.epoch, g.ended_at nulls last)
), judged as (
    select s.namespace, s.job_id, s.epoch,
           case when s.epoch = s.epoch_before then format('epoch %s was granted twice', s.epoch)
                when s.epoch <> coalesce(s.epoch_before, 0) + 1 and s.epoch & ((1::bigint << 40) - 1) <> 1
                    then format('no lease stands between epochs %s and %s', coalesce(s.epoch_before, 0), s.epoch)
                when s.same_clock and s.granted_at < s.ended_before
                    then format('epoch %s was granted while epoch %s was still held (or the server''s clock was set back)',
                                s.epoch, s.epoch_before)
                when s.ended_at < s.granted_at then format('epoch %s ended before it began', s.epoch)
                when s.attempt < s.attempt_before
                    then format('epoch %s counts attempt %s after attempt %s', s.epoch, s.attempt, s.attempt_before)
           end as detail
    from steps s
    union all
    select r.namespace, r.job_id, r.epoch,
           case when r.epoch <> coalesce(h.epoch, 0)
                then format('its row carries epoch %s, its last lease had epoch %s', r.epoch, coalesce(h.epoch, 0)) end
    from (
        select w.job_id, w.namespace, w.epoch from leasehold.waiting w
        union all select r.job_id, r.namespace, r.epoch from leasehold.ready r
        union all select e.job_id, e.namespace, e.epoch from leasehold.ended e
    ) r
    left join (select h.job_id, max(h.epoch) as epoch from leasehold.lease_history h group by h.job_id) h
        on h.job_id = r.job_id
)
select j.namespace, j.job_id, j.detail,
       'do not trust epochs of this job as fences, report it with `leasehold job show`: no statement of ours does this' as remedy
from judged j
where j.detail is not null
order by j.job_id, j.epoch limit $3
