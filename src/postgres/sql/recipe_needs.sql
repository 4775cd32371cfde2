-- recipe_needs.sql: what recipe jobs need, as far as it is known, for listings.
-- $1 namespace   $2 jobs
select p.job_id, s.state, s.epoch, p.published_at, p.hint_epoch is not null as by_handoff, p.hint_epoch = s.epoch as exact,
       p.cpu_millis, p.memory_bytes, p.ephemeral_storage_bytes, p.os, p.architecture, p.variant, p.image_reference,
       p.image_digest, case when p.handoff_at = p.events then p.handoffs else 0 end as handoffs, p.declined, p.refusals,
       p.refusal, p.refused_at, (j.definition->'require')::text as require, j.definition->>'digest' as digest,
       json_typeof(j.payload) as payload_is,
       case when json_typeof(j.payload) = 'object' then (j.payload->'execution')::text end as execution
from unnest($2::bigint[]) as a (job_id)
cross join lateral (select p.* from leasehold.recipes p where p.job_id = a.job_id and p.namespace = $1) p
cross join lateral (select j.* from leasehold.jobs j where j.job_id = p.job_id limit 1) j
cross join lateral (select s.* from leasehold.job_states s where s.job_id = p.job_id limit 1) s
order by p.job_id
