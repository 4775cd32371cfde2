//! What a recipe job waits for, in words: signals, children, a time; or a worker that has what its next task needs.

use leasehold_actors::{
    domain::execution::{AdmissionError, Allocation, Requirements, compare, payload},
    error::StoreError,
    ports::recipe::Hint,
};
use serde::Deserialize;

use super::{execution_view::requirements, recipe, row::Columns};

/// So many workers are named.
const NAMED: usize = 5;
/// What is said of a fact that a worker does not say.
const UNKNOWN: &str = "(unknown)";

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
    /// The living workers that poll for it, with what they say that they have.
    workers: Vec<Polling>,
    refusals: i32,
    refusal: String,
    /// What is wrong with the payload's key `execution`.
    malformed: Option<String>,
    /// The task for which no runtime node was found, in words.
    unplaced: Option<String>,
    /// The version of its language or payload is one that this program does not know.
    foreign: Option<String>,
}

/// A worker as it says of itself.
#[derive(Debug, Deserialize)]
struct Polling {
    worker: String,
    /// None where an older release says nothing, or something that cannot be read.
    #[serde(default, deserialize_with = "lenient")]
    allocation: Option<Allocation>,
}

fn lenient<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Allocation>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
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
            workers: columns.json("allocations")?,
            refusals: columns.get("refusals")?,
            refusal: columns.get::<Option<String>>("refusal")?.unwrap_or_default(),
            malformed: malformed(columns.get("payload")?),
            unplaced: columns.get("unplaced")?,
            foreign,
        }))
    }

    /// For what it waits for a runtime node.
    pub(super) fn unplaced(&self) -> Option<&str> {
        self.unplaced.as_deref()
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

    /// That workers have refused its payload, and nothing was recorded since. Whoever holds it now may be the next.
    pub(super) fn refused(&self) -> Option<String> {
        let times = match self.refusals {
            ..=0 => return None,
            1 => "once".to_owned(),
            times => format!("{times} times in a row"),
        };
        Some(format!("workers refused it {times}: {}", self.refusal))
    }

    /// Why a QUEUED job may find no worker.
    pub(super) fn needs(&self) -> Option<String> {
        if let Some(refused) = self.refused() {
            return Some(refused);
        }
        if let Some(malformed) = &self.malformed {
            return Some(format!(
                "no worker will admit it, because its client payload cannot be read ({malformed}); set it right with \
                 `leasehold job payload set`"
            ));
        }
        if let Some(foreign) = &self.foreign {
            return Some(format!("{foreign}, and waits for a worker that knows it"));
        }
        let needs = requirements(self.needs.as_ref()?);
        if needs.is_empty() {
            return None;
        }
        let lacking: Vec<String> = self.workers.iter().filter_map(|worker| worker.lacks(&needs)).collect();
        if lacking.len() < self.workers.len() {
            return None;
        }
        let more = lacking.len().saturating_sub(NAMED);
        let mut words = lacking.into_iter().take(NAMED).collect::<Vec<_>>().join("; ");
        if more > 0 {
            words = format!("{words}; and {more} more");
        }
        // Where nobody says what it has, the worker's flags are what is missing.
        let say =
            if words.contains(UNKNOWN) { "; workers say what they have with --allocation-…" } else { "" };
        let declined = match self.declined.as_slice() {
            [] => String::new(),
            declined => format!(
                "; declined it: {}",
                declined.iter().map(|by| shown(by)).collect::<Vec<_>>().join(" and ")
            ),
        };
        if self.exact {
            return Some(format!(
                "its next task needs {needs}, and no live worker that polls for it has that: {words}{declined}{say}"
            ));
        }
        Some(format!(
            "its last published needs are {needs}, which no live worker that polls for it has ({words}); since they are \
             stale, one of them tries it after 5 s"
        ))
    }
}

fn malformed(payload: Option<&str>) -> Option<String> {
    match payload::read(payload?) {
        Err(AdmissionError::Malformed { reason }) => Some(reason),
        _ => None,
    }
}

impl Polling {
    /// What of these needs it does not have, in words; none where it has them all.
    fn lacks(&self, needs: &Requirements) -> Option<String> {
        let nothing = Allocation::default();
        let mismatches = compare(needs, self.allocation.as_ref().unwrap_or(&nothing));
        if mismatches.is_empty() {
            return None;
        }
        let lacks: Vec<String> = mismatches
            .iter()
            .map(|m| match &m.actual {
                Some(actual) => format!("{} (has {actual})", m.field),
                None => format!("{} {UNKNOWN}", m.field),
            })
            .collect();
        Some(format!("{} lacks {}", self.worker, lacks.join(" and ")))
    }
}

/// What declined it, as people write allocations; as it stands where it is none.
fn shown(declined: &str) -> String {
    match serde_json::from_str::<Allocation>(declined) {
        Ok(allocation) if allocation.is_empty() => "one of which nothing is known".to_owned(),
        Ok(allocation) => allocation.to_string(),
        Err(_) => declined.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polling(worker: &str, facts: &str) -> Polling {
        Polling { worker: worker.to_owned(), allocation: Some(facts.parse().unwrap()) }
    }

    #[test]
    fn each_worker_is_told_what_it_lacks() {
        let needs = "cpu=500m,memory=16Gi,platform=linux/arm64".parse().unwrap();
        assert_eq!(
            polling("small", "cpu=1,memory=2Gi").lacks(&needs).unwrap(),
            "small lacks memory (has 2Gi) and platform (unknown)"
        );
        assert_eq!(polling("big", "cpu=1,memory=32Gi,platform=arm64").lacks(&needs), None);
        let words: Vec<Polling> = serde_json::from_str(
            r#"[{"worker":"a","allocation":{"resources":{"memory":"2Gi"}}},{"worker":"b","allocation":null},{"worker":"c","allocation":{"gpu":1}}]"#,
        )
        .unwrap();
        let known: Vec<bool> = words.iter().map(|worker| worker.allocation.is_some()).collect();
        assert_eq!(known, [true, false, false]);
        assert_eq!(shown(r#"{"resources":{"memory":"2Gi"}}"#), "memory=2Gi");
        assert_eq!((shown("{}"), shown("[1]")), ("one of which nothing is known".into(), "[1]".into()));
    }
}
