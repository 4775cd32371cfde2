//! What listings say of the needs of recipe jobs that wait, and which of them an allocation satisfies.
//!
//! The answer is for people, and for programs that start workers: what a worker may really take is decided by its claim,
//! and in the end by the guard before each task.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Mutex, PoisonError},
};

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{
        JobId, JobKind, JobState, Namespace,
        execution::{AdmissionError, Allocation, Requirements, compare, payload},
    },
    error::StoreError,
    ports::recipe::Hint,
};
use serde::Serialize;

use super::{
    PgStore,
    read::JobRow,
    recipe_needs::RecipeNeeds,
    row::Columns,
    sql_file::{Sql, sql},
};
use crate::recipe::{bundle::Bundle, compile};

static RECIPE_BUNDLES: Sql = sql!("recipe_bundles", [TEXT, INT8_ARRAY]);

/// Pinned recipes that are read at once; each may have 256 KiB.
const BUNDLES: usize = 20;
/// Recipes of which it is remembered whether they declare needs.
const REMEMBERED: usize = 10_000;
/// The name of an image of which only the digest is known; a digest alone decides.
const NAMELESS: &str = "unnamed";

/// What the next task of a recipe job needs, as far as it is known. Only what waits has needs to show.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ExecutionView {
    /// They are known.
    Specified {
        /// Who said so.
        source: NeedsSource,
        /// How far it can be relied on.
        hint: HintQuality,
        /// The needs.
        requirements: Requirements,
    },
    /// The recipe declares nothing, and nothing was said otherwise.
    Unspecified,
    /// The recipe declares needs, which are worked out when it runs: nobody has published any yet.
    Unresolved {
        /// What is known: these were given at submission, and hold for every task.
        overrides: Requirements,
    },
    /// What stands in the client payload under `execution` cannot be read: no worker admits the job. Or what was said at
    /// submission of all tasks cannot: the job fails when it runs.
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
    /// It has a version that this program does not know.
    Unsupported {
        /// The version, as it is written.
        version: String,
    },
    /// It runs: what it needs is its worker's business.
    InFlight,
    /// It has ended.
    NotWaiting,
}

/// Who said what a job needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NeedsSource {
    /// A worker that did not have it.
    Handoff,
    /// A worker, by the way: the job went to sleep, or to another route.
    Reschedule,
    /// Whoever submitted it, or wrote its client payload.
    Submission,
}

impl NeedsSource {
    /// The name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handoff => "handoff",
            Self::Reschedule => "reschedule",
            Self::Submission => "submission",
        }
    }
}

/// How far published needs can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HintQuality {
    /// Nothing has happened to the job since: this is what its next task needs.
    Exact,
    /// Something has happened, or nobody has worked it out: the next task may need something else.
    Stale,
}

/// A recipe job that workers did not admit, since what stands in its payload under `execution` cannot be read. Counted
/// apart from losses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdmissionRefused {
    /// How often in a row; the fifth fails the job.
    pub in_a_row: i32,
    /// Why, the last time.
    pub reason: String,
    /// When that was.
    pub at: Option<DateTime<Utc>>,
}

/// Which waiting jobs to list: those that a worker with this allocation could take on.
#[derive(Debug, Clone, PartialEq)]
pub struct Fits {
    /// What the worker has ([`Allocation::parse_facts`]).
    pub allocation: Allocation,
    /// Also jobs whose needs nobody has published, if the known overrides fit.
    pub include_unresolved: bool,
}

impl Fits {
    /// Whether a job belongs to the listing.
    #[must_use]
    pub fn takes(&self, view: &ExecutionView) -> bool {
        match view {
            ExecutionView::Specified { requirements, .. } => {
                compare(requirements, &self.allocation).is_empty()
            }
            ExecutionView::Unspecified => true,
            ExecutionView::Unresolved { overrides } => {
                self.include_unresolved && compare(overrides, &self.allocation).is_empty()
            }
            ExecutionView::Malformed { .. }
            | ExecutionView::Unsupported { .. }
            | ExecutionView::InFlight
            | ExecutionView::NotWaiting => false,
        }
    }
}

impl fmt::Display for ExecutionView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |needs: &Requirements| {
            if needs.is_empty() { "nothing".to_owned() } else { needs.to_string() }
        };
        match self {
            Self::Specified { source, hint, requirements } => {
                let stale = if *hint == HintQuality::Stale { ", stale" } else { "" };
                write!(f, "{} ({}{stale})", words(requirements), source.as_str())
            }
            Self::Unspecified => f.write_str("unspecified"),
            Self::Unresolved { overrides } if overrides.is_empty() => f.write_str("unresolved"),
            Self::Unresolved { overrides } => write!(f, "unresolved ({overrides} given)"),
            Self::Malformed { .. } => f.write_str("malformed"),
            Self::Unsupported { version } => write!(f, "unsupported (version {version})"),
            Self::InFlight => f.write_str("in flight"),
            Self::NotWaiting => f.write_str("-"),
        }
    }
}

/// Of which recipes it is known whether they declare needs, by their digests.
#[derive(Debug, Default)]
pub(super) struct Declared(Mutex<BTreeMap<String, bool>>);

impl Declared {
    fn of(&self, digest: &str) -> Option<bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest).copied()
    }

    fn remember(&self, digest: String, declares: bool) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(digest, declares);
    }
}

impl PgStore {
    /// Says of every recipe among these rows what it needs, and whether it was refused.
    pub(super) async fn add_execution(
        &self,
        namespace: &Namespace,
        rows: &mut [JobRow],
    ) -> Result<(), StoreError> {
        let recipes: Vec<JobId> =
            rows.iter().filter(|row| row.kind == JobKind::Recipe).map(|row| row.id).collect();
        if recipes.is_empty() {
            return Ok(());
        }
        let needs = self.recipe_needs(namespace, &recipes).await?;
        self.learn_declared(namespace, &needs).await?;
        let needs: BTreeMap<JobId, RecipeNeeds> = needs.into_iter().map(|needs| (needs.job, needs)).collect();
        for row in rows {
            let Some(needs) = needs.get(&row.id) else { continue };
            row.admission_refused = refused(needs);
            // The row was read before its needs: what no longer waited by then shows none.
            let state = if waits(row.state) { needs.state } else { row.state };
            row.execution = Some(if waits(state) {
                let declares = needs.digest.as_deref().and_then(|digest| self.inner.declared.of(digest));
                view(needs, declares)
            } else if state == JobState::Running {
                ExecutionView::InFlight
            } else {
                ExecutionView::NotWaiting
            });
        }
        Ok(())
    }

    /// Compiles the recipes of which it matters, and is not known yet, whether they declare needs.
    async fn learn_declared(&self, namespace: &Namespace, needs: &[RecipeNeeds]) -> Result<(), StoreError> {
        const OPERATION: &str = "recipe_bundles";
        let mut seen = BTreeSet::new();
        let unknown = |needs: &&RecipeNeeds| {
            waits(needs.state)
                && needs.published.is_none()
                && needs.digest.as_ref().is_some_and(|digest| {
                    self.inner.declared.of(digest).is_none() && seen.insert(digest.clone())
                })
        };
        let jobs: Vec<i64> = needs.iter().filter(unknown).map(|needs| needs.job.0).collect();
        for jobs in jobs.chunks(BUNDLES) {
            let rows = self.call(OPERATION, &RECIPE_BUNDLES, &[&namespace.as_str(), &jobs]).await?;
            for row in &rows {
                let columns = Columns::new(OPERATION, row);
                let digest: String = columns.get("digest")?;
                let bundle: String = columns.get("bundle")?;
                let look = self.inner.io.spawn_blocking(move || {
                    let bundle = Bundle::parse(&bundle).ok().filter(|bundle| bundle.digest() == digest)?;
                    Some((digest, compile(&bundle).ok()?.declares_needs()))
                });
                // What this program cannot read may declare anything.
                if let Ok(Some((digest, declares))) = look.await {
                    self.inner.declared.remember(digest, declares);
                }
            }
        }
        Ok(())
    }
}

fn waits(state: JobState) -> bool {
    matches!(state, JobState::Pending | JobState::Queued)
}

fn refused(needs: &RecipeNeeds) -> Option<AdmissionRefused> {
    (needs.refusals > 0).then(|| AdmissionRefused {
        in_a_row: needs.refusals,
        reason: needs.refusal.clone().unwrap_or_default(),
        at: needs.refused_at,
    })
}

/// What is to be said of a job that waits; `declares`: whether its recipe says anything of needs, where that is known.
fn view(needs: &RecipeNeeds, declares: Option<bool>) -> ExecutionView {
    if !matches!(needs.payload_is.as_str(), "object" | "null") {
        let reason = format!("the client payload is no object, but of JSON's type {:?}", needs.payload_is);
        return ExecutionView::Malformed { reason };
    }
    let written = match needs.execution.as_deref().map(read).transpose() {
        Ok(written) => written,
        Err(AdmissionError::Malformed { reason }) => return ExecutionView::Malformed { reason },
        Err(AdmissionError::UnsupportedVersion { version }) => {
            return ExecutionView::Unsupported { version };
        }
    };
    // Submitted by SQL, which does not look into it: the job fails when it runs.
    let overrides: Requirements = match needs.require.as_deref().map(serde_json::from_str).transpose() {
        Ok(overrides) => overrides.unwrap_or_default(),
        Err(error) => return ExecutionView::Malformed { reason: format!("require: {error}") },
    };
    if let Some(published) = &needs.published {
        // The payload has the same in words, unless a client has written over it; with a digest, also the name.
        let words = written.filter(|written| Hint::from(written) == published.hint);
        return ExecutionView::Specified {
            source: if published.by_handoff { NeedsSource::Handoff } else { NeedsSource::Reschedule },
            hint: if published.exact { HintQuality::Exact } else { HintQuality::Stale },
            requirements: words.unwrap_or_else(|| requirements(&published.hint)),
        };
    }
    let said =
        |requirements, hint| ExecutionView::Specified { source: NeedsSource::Submission, hint, requirements };
    match written {
        // A client's word, which nobody has worked out.
        Some(written) => said(written, HintQuality::Stale),
        None if declares != Some(false) => ExecutionView::Unresolved { overrides },
        None if overrides.is_empty() => ExecutionView::Unspecified,
        // Until something has run, nothing but these can be asked for.
        None if needs.epoch.0 == 0 => said(overrides, HintQuality::Exact),
        None => said(overrides, HintQuality::Stale),
    }
}

/// What stands under the payload's key, without the rest of the payload. Places are left out: they count from there.
fn read(execution: &str) -> Result<Requirements, AdmissionError> {
    let alone = format!("{{\"{}\":{execution}}}", payload::KEY);
    match payload::read(&alone) {
        Ok(found) => Ok(found.map(|found| found.requirements).unwrap_or_default()),
        Err(AdmissionError::Malformed { reason }) => {
            let cut = reason.rfind(" (byte ").unwrap_or(reason.len());
            Err(AdmissionError::Malformed { reason: reason[..cut].to_owned() })
        }
        Err(error) => Err(error),
    }
}

/// A hint in words. Of a digest's image the name is not kept.
pub(super) fn requirements(hint: &Hint) -> Requirements {
    let platform = hint.platform.as_ref().map(|(os, architecture, variant)| {
        let variant = variant.as_ref().map(|variant| format!("/{variant}")).unwrap_or_default();
        format!("{os}/{architecture}{variant}")
    });
    let digest = hint.image_digest.as_ref().map(|digest| format!("{NAMELESS}@{digest}"));
    Requirements {
        cpu_millis: hint.cpu_millis,
        memory_bytes: hint.memory_bytes,
        ephemeral_storage_bytes: hint.ephemeral_storage_bytes,
        // Both were normalised when they were stored.
        platform: platform.and_then(|text| text.parse().ok()),
        image: digest.or_else(|| hint.image_reference.clone()).and_then(|text| text.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_actors::domain::Epoch;

    use super::{super::recipe_needs::PublishedNeeds, *};

    fn needs() -> RecipeNeeds {
        RecipeNeeds {
            job: JobId(1),
            state: JobState::Queued,
            epoch: Epoch(0),
            published: None,
            handoffs: 0,
            declined: Vec::new(),
            refusals: 0,
            refusal: None,
            refused_at: None,
            require: None,
            digest: None,
            payload_is: "null".to_owned(),
            execution: None,
        }
    }

    fn words(needs: &RecipeNeeds, declares: Option<bool>) -> String {
        view(needs, declares).to_string()
    }

    #[test]
    fn what_is_known_decides_what_is_said() {
        let plain = needs();
        assert_eq!(words(&plain, Some(false)), "unspecified");
        assert_eq!(words(&plain, Some(true)), "unresolved");
        assert_eq!(words(&plain, None), "unresolved", "a recipe that cannot be read may declare anything");
        let given = RecipeNeeds { require: Some(r#"{"resources":{"cpu":"2"}}"#.into()), ..needs() };
        assert_eq!(words(&given, Some(true)), "unresolved (cpu=2 given)");
        assert_eq!(words(&given, Some(false)), "cpu=2 (submission)");
        let begun = RecipeNeeds { epoch: Epoch(3), ..given };
        assert_eq!(words(&begun, Some(false)), "cpu=2 (submission, stale)");
    }

    /// RQ-01
    #[test]
    fn what_a_payload_says_is_read_as_a_worker_reads_it() {
        let written = |text: &str| RecipeNeeds {
            payload_is: "object".to_owned(),
            execution: Some(text.into()),
            ..needs()
        };
        let good = written(r#"{"version":1,"requirements":{"platform":"arm64"}}"#);
        assert_eq!(words(&good, Some(true)), "platform=linux/arm64 (submission, stale)");
        let newer = view(&written(r#"{"version":12345678901234567890}"#), Some(false));
        assert_eq!(newer, ExecutionView::Unsupported { version: "12345678901234567890".to_owned() });
        for (bad, reason) in [
            ("null", "payload.execution: "),
            ("{}", "payload.execution: has no version"),
            (r#"{"version":1,"requirements":{"resources":{"cpu":"0"}}}"#, "cpu: \"0\""),
        ] {
            match view(&written(bad), Some(false)) {
                ExecutionView::Malformed { reason: found } => {
                    assert!(found.contains(reason) && !found.contains("(byte"), "{found}");
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
        // Submitted by SQL: an amount that nobody can read is never "no requirements".
        let given = RecipeNeeds { require: Some(r#"{"resources":{"memory":"500K"}}"#.into()), ..needs() };
        match view(&given, Some(false)) {
            ExecutionView::Malformed { reason } => {
                assert!(reason.starts_with("require: memory: \"500K\""), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        let list = RecipeNeeds { payload_is: "array".to_owned(), ..needs() };
        assert!(matches!(view(&list, Some(false)), ExecutionView::Malformed { .. }));
    }

    #[test]
    fn published_needs_keep_the_name_of_an_image_as_long_as_the_payload_has_it() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let said: Requirements = format!("memory=2Gi,image=registry.internal/w:1@{digest}").parse().unwrap();
        let published = PublishedNeeds {
            hint: Hint::from(&said),
            by_handoff: true,
            exact: true,
            at: DateTime::UNIX_EPOCH,
        };
        let text = |said: &Requirements| {
            Some(format!(r#"{{"version":1,"requirements":{}}}"#, serde_json::to_string(said).unwrap()).into())
        };
        let waiting = RecipeNeeds {
            published: Some(published),
            payload_is: "object".to_owned(),
            execution: text(&said),
            ..needs()
        };
        assert_eq!(words(&waiting, Some(true)), format!("{said} (handoff)"));
        // A client has written over it.
        let waiting = RecipeNeeds { execution: text(&"cpu=1".parse().unwrap()), ..waiting };
        let found = words(&waiting, Some(true));
        assert!(found.starts_with("memory=2Gi,image=docker.io/library/unnamed"), "{found}");
        assert!(found.ends_with(&format!("@{digest} (handoff)")), "{found}");
        // Its last lease was another one.
        let mut stale = waiting;
        stale.published.as_mut().unwrap().exact = false;
        assert!(words(&stale, Some(true)).ends_with("(handoff, stale)"));
    }

    #[test]
    fn an_allocation_takes_what_it_satisfies_and_nothing_that_is_not_known_unless_asked() {
        let fits = |facts: &str, include_unresolved| Fits {
            allocation: Allocation::parse_facts(facts).unwrap(),
            include_unresolved,
        };
        let specified = |needs: &str| ExecutionView::Specified {
            source: NeedsSource::Handoff,
            hint: HintQuality::Exact,
            requirements: needs.parse().unwrap(),
        };
        let unresolved = |given: &str| ExecutionView::Unresolved { overrides: given.parse().unwrap() };
        let small = fits("cpu=1,memory=2Gi", false);
        assert!(
            small.takes(&specified("memory=2Gi")) && !small.takes(&specified("memory=2Gi,platform=amd64"))
        );
        assert!(small.takes(&specified("")) && small.takes(&ExecutionView::Unspecified));
        assert!(!small.takes(&unresolved("")));
        let asked = fits("cpu=1,memory=2Gi", true);
        assert!(asked.takes(&unresolved("cpu=1")) && !asked.takes(&unresolved("cpu=2")));
        for never in [
            ExecutionView::Malformed { reason: String::new() },
            ExecutionView::Unsupported { version: "2".to_owned() },
            ExecutionView::InFlight,
            ExecutionView::NotWaiting,
        ] {
            assert!(!asked.takes(&never), "{never:?}");
        }
    }

    #[test]
    fn programs_read_fixed_words() {
        let json = |view: &ExecutionView| serde_json::to_string(view).unwrap();
        let specified = ExecutionView::Specified {
            source: NeedsSource::Reschedule,
            hint: HintQuality::Stale,
            requirements: "cpu=2".parse().unwrap(),
        };
        assert_eq!(
            json(&specified),
            r#"{"status":"specified","source":"reschedule","hint":"stale","requirements":{"resources":{"cpu":"2"}}}"#
        );
        assert_eq!(json(&ExecutionView::InFlight), r#"{"status":"in_flight"}"#);
        assert_eq!(json(&ExecutionView::NotWaiting), r#"{"status":"not_waiting"}"#);
        let unresolved = ExecutionView::Unresolved { overrides: Requirements::default() };
        assert_eq!(json(&unresolved), r#"{"status":"unresolved","overrides":{}}"#);
    }
}
