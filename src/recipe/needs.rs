//! The amounts, platforms and references in `execution` and `execution_needs`, checked by the parsers that the rest of
//! the product uses.

use leasehold_actors::domain::quantity;

use crate::submission::image;

/// Checks one text against what its field holds.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn check(field: &str, text: &str) -> Result<(), String> {
    match field {
        "cpu" => quantity::parse_cpu(text).map(|_| ()).map_err(|e| e.to_string()),
        "memory" | "ephemeral-storage" => quantity::parse_memory(text).map(|_| ()).map_err(|e| e.to_string()),
        "image" => image::check(text).map_err(|e| e.to_string()),
        _ => Ok(()),
    }
}
