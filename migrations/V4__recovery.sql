-- V4__recovery.sql: what recovery needs to know of a lease and of a node beyond what a claim wrote.

alter table leasehold.leases
    -- Cleanup was first given up then, and is still to be done.
    add column cleanup_pending_since timestamptz,
    -- The loss of this claim overlapped a restart or a promotion of the database: it is not counted.
    add column loss_excused boolean not null default false;

-- Since when the node has been at its present endpoint and engine: whatever heartbeated under its id before is silent
-- since then at the latest.
alter table leasehold.nodes add column incarnated_at timestamptz not null default clock_timestamp();
