-- V9__task_containers.sql: where the containers of recipes' tasks run. A recipe may have several at once; each has a slot in
-- node_slots too, under the same (job, task), and both last until the task or the lease ends: a takeover inherits them.

create table leasehold.task_containers (
    job_id bigint not null,
    -- A hash of the path.
    task text not null,
    namespace text not null,
    path text not null,
    -- The claim that it was placed under; its container carries the same.
    epoch bigint not null,
    node_id text not null,
    node_incarnation bigint not null,
    node_endpoint text not null,
    node_engine_id text not null,
    container_id text,
    placed_at timestamptz not null default clock_timestamp(),
    primary key (job_id, task)
);

-- Since when no node was found for a task, what it needed, and how many events there were: it counts as long as there
-- are no more.
alter table leasehold.recipes
    add column unplaced_since timestamptz,
    add column unplaced_at bigint,
    add column unplaced text;
