//! Where to begin looking for QUEUED jobs (D8).
//!
//! Claims take from the head of an index; while an old snapshot is held anywhere, the entries of jobs taken long
//! ago stay there, and every claim would walk over all of them. So each claim notes the last job that it took,
//! and the next one begins there. The mark is advice: a job may be queued below it (a higher priority, an earlier
//! time, a claim that was undone), so a full look comes again and again: often where it is cheap, and at least
//! every second. What this process knows to have been left below (by a claim that failed, or queued by itself)
//! it looks for at once.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
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

/// Where a claim begins.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// For each route; none for a full look.
    pub(super) from: Option<Vec<Place>>,
    era: u64,
}

#[derive(Debug, Default)]
struct Book {
    marks: HashMap<(Namespace, Route), Mark>,
    /// Counts what was forgotten. A look that began before saw less than there is now, and leaves no mark.
    era: u64,
}

/// The marks of one store.
#[derive(Debug, Default)]
pub(super) struct Marks(Mutex<Book>);

impl Marks {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to begin. A full look begins at the beginning of all routes.
    pub(super) fn look(&self, namespace: &Namespace, routes: &[Route]) -> Look {
        let book = self.book();
        let now = Instant::now();
        let from = routes
            .iter()
            .map(|route| {
                let mark = book.marks.get(&(namespace.clone(), route.clone()))?;
                (now < mark.full_at).then_some(mark.place)
            })
            .collect();
        Look { from, era: book.era }
    }

    /// A claim took its last job of a route here.
    pub(super) fn took(&self, look: &Look, namespace: &Namespace, route: &Route, place: Place) {
        let mut book = self.book();
        if book.era == look.era
            && let Some(mark) = book.marks.get_mut(&(namespace.clone(), route.clone()))
            && mark.place < place
        {
            mark.place = place;
        }
    }

    /// A full look has taken this long.
    pub(super) fn looked(&self, look: &Look, namespace: &Namespace, routes: &[Route], cost: Duration) {
        let full_at = Instant::now() + (cost * SHARE).min(LONGEST);
        let mut book = self.book();
        if book.era != look.era {
            return;
        }
        for route in routes {
            book.marks.insert((namespace.clone(), route.clone()), Mark { place: Place::FIRST, full_at });
        }
    }

    /// Something may be below a mark: this process queued it, or held it in a claim that failed, while others went
    /// past it. The next look is a full one.
    pub(super) fn forget(&self, namespace: &Namespace) {
        let mut book = self.book();
        book.era += 1;
        book.marks.retain(|(of, _), _| of != namespace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Duration = Duration::from_secs(60);

    fn place(job: i64) -> Place {
        Place { job, ..Place::FIRST }
    }

    #[test]
    fn a_look_that_began_before_something_was_left_below_leaves_no_mark() {
        let (marks, namespace, routes) = (Marks::default(), Namespace::default(), [Route::handler("a")]);
        let early = marks.look(&namespace, &routes);
        marks.forget(&namespace);
        marks.looked(&early, &namespace, &routes, COST);
        assert_eq!(marks.look(&namespace, &routes).from, None, "it did not see everything");

        let look = marks.look(&namespace, &routes);
        marks.looked(&look, &namespace, &routes, COST);
        marks.took(&early, &namespace, &routes[0], place(9));
        assert_eq!(marks.look(&namespace, &routes).from, Some(vec![Place::FIRST]));
        marks.took(&look, &namespace, &routes[0], place(3));
        assert_eq!(marks.look(&namespace, &routes).from, Some(vec![place(3)]));
        marks.forget(&namespace);
        assert_eq!(marks.look(&namespace, &routes).from, None);
    }
}
