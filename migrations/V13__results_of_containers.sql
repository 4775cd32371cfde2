-- V13__results_of_containers.sql: what a task's container is recorded as, so that whoever takes the job over can record the
-- result of one that has ended by itself. Empty for what an older release has placed.

alter table leasehold.task_containers
    add column op text,
    add column input_hash text,
    add column attempt integer,
    -- The names of the secrets that its program was given.
    add column secrets text[],
    -- The most bytes of its output that are stored, where the task says so.
    add column log_quota_bytes bigint;
