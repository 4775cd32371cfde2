//! A node with a scripted engine, a memory store with one claimed CONTAINER job, and a lease that the test
//! itself keeps, as the LeaseActor would.

use std::time::Duration;

use crate::{
    domain::{CommandId, ContainerSpec, JobDefinition, Namespace, NewJob, ProcessId, Route, WorkerId},
    ports::{Claimant, Grant, LeaseStore, OpenClaim},
    testing::{MemoryStore, StoreHarness, TestNode},
};

/// A CONTAINER grant on node `n-1`, as a claim brings it.
pub(in crate::runtime_node_actor) fn grant() -> Grant {
    let store = MemoryStore::new();
    let namespace = Namespace::default();
    let spec = ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() };
    let claim = async {
        store.register_node(&TestNode::new(&namespace, "n-1", 4)).await;
        store.submit(&NewJob::ad_hoc(JobDefinition::Container(spec))).await;
        let request = OpenClaim {
            owner: Claimant {
                namespace: namespace.clone(),
                worker: WorkerId::new("w-1").expect("a plain name"),
                process: ProcessId::generate(),
            },
            command: CommandId::generate(),
            repeat: false,
            routes: vec![Route::container()].into(),
            limit: 1,
            lease: Duration::from_secs(30),
        };
        store.claim(&request).await.expect("the memory store answers").grants.remove(0)
    };
    futures_util::FutureExt::now_or_never(claim).expect("the memory store never waits")
}
