//! The lease protocol: pure domain, ports, and the actors that hold a worker together. No database, no
//! container engine and no configuration file is known here; adapters implement the [`ports`].
//!
//! # Map
//!
//! ```text
//!   hints (NOTIFY)                      Supervision: start, hints, health, drain, fatal
//!      │ Wake · LookAgain · RenewNow         │ guards each singleton in a Slot
//!      ▼                                     ▼
//!  DispatchActor ──queued──▶ ClaimActor    RecoveryActor ─ reserve ─▶ Permits ◀── take ── ReconcileActor
//!   PENDING → QUEUED             │ one each grant │ or takeover        ▲ (a pool each)    what became of it?
//!                                ▼                ▼      free, or drop │
//!                           LeaseActor ────────────────────────────────┘
//!                renew · time · report │ tie: deadline, task, container
//!                                      ├────────────────────────────▶ Fence (an OS thread)
//!                                      ▼ work                           ends it in time, come what may
//!                 WorkRunner (HANDLER, HEARTBEAT)  or  RunContainer, RecoverContainer ─▶ RuntimeNodeActor ─▶ ContainerEngine
//! ```
//!
//! All actors live on one arbiter. Whatever takes time (a call to the store, the work) runs beside its actor and
//! comes back as an event, so that no timer of a lease is ever held up.
//!
//! # Messages
//!
//! | message | to | kind | if it is lost |
//! |---|---|---|---|
//! | [`Wake`](claim_actor::Wake) | ClaimActor | hint | the next poll finds the work |
//! | [`StopClaiming`](claim_actor::StopClaiming) | ClaimActor | order | a shared flag says the same |
//! | [`LookAgain`](dispatch_actor::LookAgain) | DispatchActor | hint | the next poll finds what is due |
//! | [`RenewNow`](lease_actor::RenewNow) | LeaseActor | hint | the next renewal tells of the cancel |
//! | [`StopWork`](lease_actor::StopWork) | LeaseActor | order | (sent past the mailbox's bound) |
//! | [`ExportLease`](lease_actor::ExportLease) | LeaseActor | request | whoever asked hears that nothing is given away |
//! | [`RunContainer`](runtime_node_actor::RunContainer) | RuntimeNodeActor | request | the fence ends what it may have started |
//! | [`RecoverContainer`](runtime_node_actor::RecoverContainer) | RuntimeNodeActor | request | the recovery is put off |
//!
//! # Who may die
//!
//! | dies | harm |
//! |---|---|
//! | a workload | its job fails as `SYSTEM`, code `panic` |
//! | a LeaseActor | its work is told that the lease is lost; its permit awaits reconciliation |
//! | ClaimActor, RecoveryActor, DispatchActor, ReconcileActor | rebuilt by its [`Slot`](slot::Slot); what it asked is asked again from the permits |
//! | a RuntimeNodeActor | its containers are killed by the fence; the next job starts another one |
//! | every async thread blocks | the fence kills containers in time; handlers count as stuck |
//!
//! # Reading order
//!
//! 1. [`domain::lease`]: the life of a lease as one pure table. 2. [`ports`]: what is asked of the outside.
//!    3. [`lease_actor`]: the shell around the table. 4. [`permits`] and [`fence`]: what holds when actors die.
//!    5. [`claim_actor`], [`recovery_actor`], [`dispatch_actor`], [`reconcile_actor`]. 6. [`supervision`]: how it all starts and ends.
//!    7. [`runtime_node_actor`]: containers. `testing` (behind a feature) has the memory store, which is the
//!    executable specification of the rules.
//!
//! Where does a change go? A rule about what a holder does: [`domain::lease`], its table test, then the shell. A
//! rule about what the store does: `testing::memory_store`, the conformance suite, then the SQL. A new message:
//! the receiver's file, and the table above.
//!
//! `examples/actor_cost.rs` measures what the actors themselves cost for each job.

pub mod claim_actor;
pub mod clock;
pub mod dispatch_actor;
pub mod domain;
pub mod error;
pub mod fence;
#[cfg(test)]
mod fixtures;
mod jitter;
pub mod lease_actor;
pub mod leases;
pub mod nodes;
pub mod permits;
pub mod ports;
pub mod reconcile_actor;
pub mod recovery_actor;
pub mod runtime_node_actor;
pub mod settings;
pub mod slot;
pub mod supervision;
pub mod supplied;
#[cfg(feature = "memory")]
pub mod testing;
pub mod work;
