-- audit_conservation.sql: jobs that do not stand in exactly one of the four tables, or not under their own namespace.
-- $1 as of   $2 seconds of patience   $3 lines at most
select coalesce(j.namespace, p.namespaces[1]) as namespace, coalesce(j.job_id, p.job_id) as job_id,
       case when j.job_id is null then 'stands in ' || array_to_string(p.places, ' and ') || ', but was never submitted'
            when p.job_id is null then 'was submitted and stands in none of waiting, ready, leases and ended'
            when cardinality(p.places) > 1 then 'stands in ' || array_to_string(p.places, ' and ') || ' at once'
            else 'stands in ' || p.places[1] || ' under another namespace, ' || p.namespaces[1] end as detail,
       case when j.job_id is null then 'delete the row from leasehold.' || p.places[1] || ', and report it: no statement of ours does this'
            when p.job_id is null then 'submit the work anew, and report it: no statement of ours does this'
            when cardinality(p.places) > 1 then 'compare with `leasehold job show`, delete the row that its last lease does not explain, and report it'
            else 'correct the namespace of the row, and report it' end as remedy
from leasehold.jobs j
full join (
    select s.job_id, array_agg(s.place order by s.n) as places,
           array_agg(distinct s.namespace order by s.namespace) as namespaces
    from (
        select w.job_id, w.namespace, 'waiting' as place, 1 as n from leasehold.waiting w
        union all select r.job_id, r.namespace, 'ready', 2 from leasehold.ready r
        union all select l.job_id, l.namespace, 'leases', 3 from leasehold.leases l
        union all select e.job_id, e.namespace, 'ended', 4 from leasehold.ended e
    ) s
    group by s.job_id
) p on p.job_id = j.job_id
where j.job_id is null or p.job_id is null or cardinality(p.places) > 1 or p.namespaces[1] <> j.namespace
order by 2 limit $3
