-- V3__what_people_read.sql: reopened jobs, cordoned nodes, and one view that finds a job by its state.

-- A person reopened a job that had ended: what had stood in `ended` until then.
create table leasehold.reopenings (
    job_id bigint not null,
    reopened_at timestamptz not null default clock_timestamp(),
    namespace text not null,
    state leasehold.job_end not null,
    ended_at timestamptz not null,
    attempt integer not null,
    exit_code integer,
    failure_kind leasehold.failure_kind,
    failure_code text,
    failure_message text,
    primary key (job_id, reopened_at)
);

-- An operator drained the node; that outlasts a restart of its agent.
alter table leasehold.nodes add column cordoned boolean not null default false;

-- A node that a claim is placing a job on cannot be forgotten at the same moment.
alter table leasehold.node_slots
    add foreign key (namespace, node_id) references leasehold.nodes (namespace, node_id);

-- What went wrong is looked for among very many jobs that did not.
create index ended_unsuccessful on leasehold.ended (namespace, job_id) where state <> 'COMPLETED';

-- One row a job, whatever its state: for statements that have the job's id already. (Joins by key rather than a union:
-- the planner would read whole tables for a union.)
create view leasehold.job_states as
select j.job_id, j.namespace, j.kind, j.route, j.workflow, j.generation, j.priority, j.submitted_at,
       case when w.job_id is not null then 'PENDING' when r.job_id is not null then 'QUEUED'
            when l.job_id is not null then 'RUNNING' else e.state::text end as state,
       coalesce(w.dispatch_attempt, r.dispatch_attempt, l.dispatch_attempt, e.dispatch_attempt) as dispatch_attempt,
       coalesce(w.attempt, r.attempt, l.attempt, e.attempt) as attempt,
       coalesce(w.epoch, r.epoch, l.epoch, e.epoch) as epoch,
       coalesce(w.failures_user, r.failures_user, l.failures_user, e.failures_user) as failures_user,
       coalesce(w.failures_system, r.failures_system, l.failures_system, e.failures_system) as failures_system,
       coalesce(w.failures_timeout, r.failures_timeout, l.failures_timeout, e.failures_timeout) as failures_timeout,
       coalesce(w.losses, r.losses, l.losses, e.losses) as losses,
       case when isfinite(w.due_at) then w.due_at else r.due_at end as due_at, w.held_due_at, w.blocked_by,
       l.worker_id, l.process_id, l.node_id, l.container_id, l.granted_at, l.lease_expires_at, l.renewals,
       l.cancel_requested_at, e.ended_at, e.exit_code, e.failure_kind::text as failure_kind, e.failure_code,
       e.failure_message, e.output
from leasehold.jobs j
left join leasehold.waiting w on w.job_id = j.job_id
left join leasehold.ready r on r.job_id = j.job_id
left join leasehold.leases l on l.job_id = j.job_id
left join leasehold.ended e on e.job_id = j.job_id;
