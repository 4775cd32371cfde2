-- fence.sql: locks a live lease for the rest of the caller's transaction, or raises LH020.
-- $1 job   $2 token
select leasehold.fence($1, $2)
