//! One runtime node: owns the client of its Docker engine and runs containers on it, each from its plan to its
//! removal, under the lease that the request carries.

use actix::Message;

use crate::work::{LeaseContext, WorkOutcome};

/// Runs the container of a CONTAINER grant on the node that the grant names. Sent by the LeaseActor once its
/// immediate renewal was confirmed; answered when the container has ended and is removed.
///
/// The answer keeps to [`LeaseContext::stopped`]: a requested stop is answered [`WorkOutcome::Stopped`] soon
/// after the stop grace, a lost lease in time for its deadline.
#[derive(Debug, Message)]
#[rtype(result = "WorkOutcome")]
pub struct RunContainer {
    /// The lease to run under; its grant says what, where and how long.
    pub lease: LeaseContext,
}
