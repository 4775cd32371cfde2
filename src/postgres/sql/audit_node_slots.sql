-- audit_node_slots.sql: the slots in use on a node are exactly the RUNNING jobs, and tasks of such, placed
-- there.
-- $1 as of   $2 seconds of patience   $3 lines at most
select f.namespace, f.job_id, f.detail, f.remedy
from (
    select s.namespace, s.job_id,
           format('slot %s of node %s is taken by it, ', s.slot, s.node_id)
               || case when l.job_id is null then 'and it is not RUNNING' else format('and it runs on %s', coalesce(l.node_id, 'no node')) end as detail,
           format('delete from leasehold.node_slots where job_id = %s, and report it', s.job_id) as remedy
    from leasehold.node_slots s
    left join leasehold.leases l on l.job_id = s.job_id
    where s.task = '' and (l.job_id is null or (l.namespace, l.node_id) is distinct from (s.namespace, s.node_id))
    union all
    select s.namespace, s.job_id,
           format('slot %s of node %s is taken by a task of it, which is not placed there', s.slot, s.node_id),
           format('delete from leasehold.node_slots where job_id = %s and task = %L, and report it', s.job_id, s.task)
    from leasehold.node_slots s
    left join leasehold.task_containers t on t.job_id = s.job_id and t.task = s.task
    where s.task <> '' and (t.namespace, t.node_id) is distinct from (s.namespace, s.node_id)
    union all
    select t.namespace, t.job_id, format('its task %s is placed on node %s, and it is not RUNNING', left(t.path, 200), t.node_id),
           format('delete from leasehold.task_containers where job_id = %s, and report it', t.job_id)
    from leasehold.task_containers t
    where not exists (select from leasehold.leases l where l.job_id = t.job_id and l.kind = 'RECIPE')
    union all
    select t.namespace, t.job_id, format('its task %s runs on node %s and has no slot there', left(t.path, 200), t.node_id),
           'nothing at once: the node may run one job too many until this one ends, report it'
    from leasehold.task_containers t
    join leasehold.nodes n on n.namespace = t.namespace and n.node_id = t.node_id and n.incarnation = t.node_incarnation
    where n.registered_at <= t.placed_at
      and not exists (select from leasehold.node_slots s where s.job_id = t.job_id and s.task = t.task)
    union all
    select l.namespace, l.job_id, format('runs on node %s and has no slot there', l.node_id),
           'nothing at once: the node may run one job too many until this one ends, report it'
    from leasehold.leases l
    join leasehold.nodes n on n.namespace = l.namespace and n.node_id = l.node_id and n.incarnation = l.node_incarnation
    -- A node that was forgotten by force took its slots with it, and came back as a new one.
    where n.registered_at <= coalesce(
            (select min(h.granted_at) from leasehold.lease_history h where h.job_id = l.job_id and h.epoch >= l.claim_epoch),
            l.granted_at)
      and not exists (select from leasehold.node_slots s where s.job_id = l.job_id)
) f
order by 2 limit $3
