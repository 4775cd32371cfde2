//! The same wiring for a lease that somebody else acquired: the worker's ops, secrets, allocation and times, and none of
//! its claims.

use std::sync::Arc;

use super::{Parts, Wiring, life, nodes};
use crate::{
    config::masked_database_url,
    recipe::supplied::{Listener, RunContext, RunEnd, RunRequest, RunStop, Supplied, run_with_lease},
};

impl Wiring {
    /// See [`crate::worker::Worker::run_with_lease`].
    pub(crate) async fn run_with_lease(
        self,
        lease: Supplied,
        mut request: RunRequest,
        listener: Listener,
        stop: RunStop,
    ) -> RunEnd {
        let Wiring { parts, owner, .. } = self;
        let Parts { runtimes, store, fleet, database, settings, routes, recipes, ports, .. } = parts;
        let Some(recipes) = recipes else {
            return RunEnd::Broken { reason: "this worker was built without recipes".to_owned() };
        };
        let actors = life::actor_settings(&settings, owner, Arc::clone(&routes));
        if request.routes.is_empty() {
            request.routes = routes;
        }
        let store = (ports.recipes)(Arc::new(store));
        let ctx = RunContext {
            engine: Arc::new(recipes.engine(Arc::clone(&store), &settings.allocation, runtimes.work())),
            store,
            threads: runtimes.work(),
            start_node: nodes::starter(fleet, runtimes.io(), ports.engines),
            timings: actors.timings,
            retry_defaults: actors.retry_defaults,
            grace: settings.shutdown_grace,
            destination: masked_database_url(&database.url),
            stop,
        };
        run_with_lease(ctx, lease, request, listener).await
        // The runtimes end here, without waiting for what cannot be ended.
    }
}
