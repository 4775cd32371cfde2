//! What a task needs of the worker that runs it, what a worker has, and the comparison of both.
//!
//! [`Requirements`] are minimums that a recipe declares; an [`Allocation`] is what whoever started the worker
//! says that it really has; [`compare`] tells them apart. All three are values: parsed and normalised once,
//! compared without any look at the host. `payload` is how requirements are published for the next worker.

mod allocation;
mod compare;
mod image;
pub mod payload;
mod platform;
mod requirements;
mod written;

pub use allocation::{Allocation, Fact, ImageFacts};
pub use compare::{Mismatch, compare};
pub use image::{ImageReference, InvalidReference, ManifestDigest, is_image_id};
pub use payload::{AdmissionError, PublishedExecution, SpliceError};
pub use platform::{InvalidPlatform, Platform};
pub use requirements::{Field, Requirements, overlay};
