//! What a recipe job waits for, in words: signals, children, a time; or a worker that has what its next task needs.

use leasehold_actors::{domain::execution::Requirements, error::StoreError, ports::recipe::Hint};

use super::{recipe, row::Columns};

/// What stands beside the row of a RECIPE job, as far as it says why the job does not run.
pub(super) struct Beside {
    /// It is PENDING until one of these comes.
    waits: bool,
    signals: Vec<String>,
    children: Vec<i64>,
    /// What its next task needs.
    needs: Option<Hint>,
    /// Nothing has happened since it was handed off.
    exact: bool,
    declined: Vec<String>,
    refusals: i32,
    refusal: String,
    /// The version of its language or payload is one that this program does not know.
    foreign: Option<String>,
}

impl Beside {
    /// From the columns of `why_job.sql`; none for other kinds of jobs.
    pub(super) fn read(columns: Columns<'_>) -> Result<Option<Self>, StoreError> {
        let Some(language) = columns.get::<Option<i32>>("language")? else { return Ok(None) };
        let known = |version: i32, known: std::ops::RangeInclusive<u32>| {
            u32::try_from(version).is_ok_and(|version| known.contains(&version))
        };
        let execution: Option<i32> = columns.get("execution_version")?;
        let foreign = if known(language, leasehold_actors::domain::RecipeSpec::LANGUAGES) {
            execution
                .filter(|v| !known(*v, leasehold_actors::domain::RecipeSpec::EXECUTION_VERSIONS))
                .map(|v| format!("its payload's key `execution` has version {v}"))
        } else {
            Some(format!("it is written in version {language} of the language of recipes"))
        };
        let published: bool = columns.get("published")?;
        Ok(Some(Self {
            waits: columns.get::<Option<bool>>("waits")?.unwrap_or(false),
            signals: columns.get::<Option<Vec<String>>>("wake_signals")?.unwrap_or_default(),
            children: columns.get::<Option<Vec<i64>>>("wake_children")?.unwrap_or_default(),
            needs: if published { Some(recipe::hint(columns)?) } else { None },
            exact: columns.get::<Option<bool>>("exact")?.unwrap_or(false),
            declined: columns.get("declined")?,
            refusals: columns.get("refusals")?,
            refusal: columns.get::<Option<String>>("refusal")?.unwrap_or_default(),
            foreign,
        }))
    }

    /// What a PENDING job waits for; `until`: the time among these.
    pub(super) fn waits_for(&self, until: Option<String>) -> Option<String> {
        if !self.waits {
            return None;
        }
        let signals = self.signals.iter().map(|name| format!("the signal {name:?}"));
        let children = self.children.iter().map(|job| format!("the end of job {job}"));
        let words: Vec<String> = signals.chain(children).chain(until).collect();
        Some(format!("its recipe waits for {}", words.join(", or ")))
    }

    /// Why a QUEUED job may find no worker.
    pub(super) fn needs(&self) -> Option<String> {
        if self.refusals > 0 {
            return Some(format!(
                "its client payload was refused {} times in a row ({}); set it right with `leasehold job payload set`",
                self.refusals, self.refusal
            ));
        }
        if let Some(foreign) = &self.foreign {
            return Some(format!("{foreign}, and waits for a worker that knows it"));
        }
        let needs = words(self.needs.as_ref()?);
        if needs.is_empty() || !self.exact {
            return None;
        }
        let declined = match self.declined.as_slice() {
            [] => String::new(),
            declined => format!("; declined it: {}", declined.join(", ")),
        };
        Some(format!("its next task needs {needs}, and it waits for a worker that has that{declined}"))
    }
}

fn words(needs: &Hint) -> String {
    let amounts = Requirements {
        cpu_millis: needs.cpu_millis,
        memory_bytes: needs.memory_bytes,
        ephemeral_storage_bytes: needs.ephemeral_storage_bytes,
        ..Requirements::default()
    };
    let platform = needs.platform.as_ref().map(|(os, architecture, variant)| {
        let variant = variant.as_ref().map(|variant| format!("/{variant}")).unwrap_or_default();
        format!("platform={os}/{architecture}{variant}")
    });
    let image = needs.image_digest.as_ref().or(needs.image_reference.as_ref());
    let words = Some(amounts.to_string()).filter(|text| !text.is_empty());
    let words: Vec<String> =
        words.into_iter().chain(platform).chain(image.map(|image| format!("image={image}"))).collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_named_as_people_write_them() {
        let needs = Hint {
            cpu_millis: Some(500),
            memory_bytes: Some(16 << 30),
            platform: Some(("linux".to_owned(), "arm64".to_owned(), None)),
            ..Hint::default()
        };
        assert_eq!(words(&needs), "cpu=500m,memory=16Gi,platform=linux/arm64");
        assert_eq!(words(&Hint::default()), "");
    }
}
