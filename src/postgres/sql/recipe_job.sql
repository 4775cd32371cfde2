-- recipe_job.sql: a recipe job as its runner must know it.
-- $1 namespace   $2 job
select s.state, j.definition::text, j.payload::text, j.payload_revision, j.submitted_at, r.published_at, r.cpu_millis,
       r.memory_bytes, r.ephemeral_storage_bytes, r.os, r.architecture, r.variant, r.image_reference, r.image_digest,
       case when r.handoff_at = r.events then r.handoffs else 0 end as handoffs, r.events,
       r.schemas::text as schemas
from leasehold.recipes r
join leasehold.jobs j on j.job_id = r.job_id
join leasehold.job_states s on s.job_id = r.job_id
where r.job_id = $2 and r.namespace = $1
