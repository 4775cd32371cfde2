//! What provisioners that died left behind: their containers are removed when the leases that they were made for are over.

use std::collections::HashSet;

use leasehold::{
    postgres::PgStore,
    protocol::{
        domain::{ContainerId, JobId, JobState},
        ports::{ContainerEngine as _, ContainerState, ContainerStatus},
    },
};

use crate::{
    Failed, Settings,
    container::{EPOCH, Engine, FLEET, JOB, NAMESPACE},
};

/// Removes what is over on one engine, but for `ours`, which this process follows itself. A container whose lease is
/// still its own is left alone, whatever it does: it may be a worker at work, or another provisioner's next one.
pub(crate) async fn pass(
    store: &PgStore,
    settings: &Settings,
    engine: &Engine,
    ours: &HashSet<ContainerId>,
) -> Result<u32, Failed> {
    let labels = [
        (FLEET.to_owned(), settings.fleet.to_string()),
        (NAMESPACE.to_owned(), settings.namespace.to_string()),
    ];
    let found = engine.engine.list(&labels).await.map_err(Failed::of("list"))?;
    let mut removed = 0;
    for status in found.iter().filter(|status| !ours.contains(&status.id)) {
        if is_over(store, settings, status).await? {
            tracing::info!(id = %status.id, name = status.name, "removing what a provisioner left behind");
            engine.remove(&status.id).await;
            removed += 1;
        }
    }
    Ok(removed)
}

async fn is_over(store: &PgStore, settings: &Settings, status: &ContainerStatus) -> Result<bool, Failed> {
    // One that has ended does nothing with its lease any more.
    if matches!(status.state, ContainerState::Exited { .. } | ContainerState::Dead) {
        return Ok(true);
    }
    let label = |key: &str| {
        let value = &status.labels.iter().find(|(name, _)| name == key)?.1;
        value.parse::<i64>().ok()
    };
    // What nobody can tell the lease of, nobody can have.
    let (Some(job), Some(epoch)) = (label(JOB), label(EPOCH)) else { return Ok(true) };
    let job = store.show_job(&settings.namespace, JobId(job)).await.map_err(Failed::of("look"))?;
    // An expired lease is over once somebody has taken the job over: until then its worker may still be ending.
    Ok(job.is_none_or(|job| job.row.state != JobState::Running || job.row.epoch.0 != epoch))
}
