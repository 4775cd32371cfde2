//! The shape of a RECIPE definition. The bundle itself is checked where it is made: what the server takes is the
//! client's compiled bundle, of which it knows the digest and the size.

use leasehold_actors::domain::{InvalidDefinition, RecipeSpec, execution::Requirements};

use super::{json, text_name};

/// The most bytes of a recipe with everything that it includes.
pub const MAX_BUNDLE_BYTES: usize = 256 << 10;

/// Checks a recipe's definition.
///
/// # Errors
/// [`InvalidDefinition`] for the first rule that is broken.
pub fn check(spec: &RecipeSpec) -> Result<(), InvalidDefinition> {
    text_name("recipe", &spec.recipe)?;
    text_name("job_type", &spec.job_type)?;
    if !RecipeSpec::LANGUAGES.contains(&spec.language) {
        return Err(InvalidDefinition::new(
            "language",
            format!("{} is not known here; known are {:?}", spec.language, RecipeSpec::LANGUAGES),
        ));
    }
    if spec.digest.len() != 64 || !spec.digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(InvalidDefinition::new("digest", "must be a SHA-256 in lower-case hex"));
    }
    for (field, value) in [("bundle", &spec.bundle), ("inputs", &spec.inputs), ("require", &spec.require)] {
        json::check(field, value.get())?;
        if !value.is_object() {
            return Err(InvalidDefinition::new(field, "must be a JSON object"));
        }
    }
    if let Err(error) = serde_json::from_str::<Requirements>(spec.require.get()) {
        return Err(InvalidDefinition::new("require", error.to_string()));
    }
    if spec.bundle.get().len() > MAX_BUNDLE_BYTES {
        return Err(InvalidDefinition::new(
            "bundle",
            format!(
                "is {} bytes long; at most {MAX_BUNDLE_BYTES} (256 KiB) are allowed",
                spec.bundle.get().len()
            ),
        ));
    }
    Ok(())
}
