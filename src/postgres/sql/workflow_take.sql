-- workflow_take.sql: locks a workflow's row, after every submit of its runs that is under way.
select generation, state::text from leasehold.workflows where namespace = $1 and name = $2 for update
