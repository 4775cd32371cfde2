//! Where to begin looking for QUEUED jobs (D8).
//!
//! Claims take from the head of an index; while an old snapshot is held anywhere, the entries of jobs taken long
//! ago stay there, and every claim would walk over all of them. So each claim notes the last job that it took,
//! and the next one begins there. The mark is advice: a job may be queued below it (a higher priority, an earlier
//! time, a claim that was undone), so a full look comes again and again: often where it is cheap, and at least
//! every second.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use leasehold_actors::domain::{Namespace, Route};

/// The longest time between two full looks.
const LONGEST: Duration = Duration::from_secs(1);
/// Full looks may take at most one part in so many of the time.
const SHARE: u32 = 20;

/// A place in the order of claims.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Place {
    pub(super) rank: i16,
    pub(super) due_at: DateTime<Utc>,
    pub(super) job: i64,
}

impl Place {
    /// Before every job.
    pub(super) const FIRST: Self = Self { rank: i16::MIN, due_at: DateTime::UNIX_EPOCH, job: i64::MIN };
}

#[derive(Debug)]
struct Mark {
    place: Place,
    /// No full look before this.
    full_at: Instant,
}

/// The marks of one store.
#[derive(Debug, Default)]
pub(super) struct Marks(Mutex<HashMap<(Namespace, Route), Mark>>);

impl Marks {
    /// Where to begin for each route. A full look begins at the beginning of all of them.
    pub(super) fn places(&self, namespace: &Namespace, routes: &[Route]) -> Option<Vec<Place>> {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        routes
            .iter()
            .map(|route| {
                let mark = marks.get(&(namespace.clone(), route.clone()))?;
                (now < mark.full_at).then_some(mark.place)
            })
            .collect()
    }

    /// A claim took its last job of a route here.
    pub(super) fn took(&self, namespace: &Namespace, route: &Route, place: Place) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mark) = marks.get_mut(&(namespace.clone(), route.clone()))
            && mark.place < place
        {
            mark.place = place;
        }
    }

    /// A full look has taken this long.
    pub(super) fn looked(&self, namespace: &Namespace, routes: &[Route], cost: Duration) {
        let full_at = Instant::now() + (cost * SHARE).min(LONGEST);
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for route in routes {
            marks.insert((namespace.clone(), route.clone()), Mark { place: Place::FIRST, full_at });
        }
    }

    /// Something was queued by this process, perhaps below a mark: look at everything next.
    pub(super) fn forget(&self, namespace: &Namespace) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.retain(|(of, _), _| of != namespace);
    }
}
