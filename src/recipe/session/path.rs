//! Names of occurrences: the ids from the root, each state with its visit, each node under `retry` with its attempt:
//! `work/poll#3/fetch!2`.
//!
//! What a node itself records beside its task (the timer of its timeout, of a back-off) stands below it under a name
//! that no node can have: `fetch!2/@timeout`. A root has no id; its own records stand under `.`.

use std::fmt;

/// Where a walk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    /// The node's own name; empty for a root without attempts.
    own: String,
    /// What stands before the names of its children.
    prefix: String,
}

impl Path {
    /// The root of the whole recipe.
    pub(super) fn root() -> Self {
        Self { own: ".".to_owned(), prefix: String::new() }
    }

    fn below(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}/{name}", self.prefix) }
    }

    fn of(own: String) -> Self {
        Self { prefix: own.clone(), own }
    }

    /// A child by its id.
    pub(super) fn child(&self, id: &str) -> Self {
        Self::of(self.below(id))
    }

    /// A visit of a state, from 1.
    pub(super) fn visit(&self, id: &str, visit: u32) -> Self {
        Self::of(self.below(&format!("{id}#{visit}")))
    }

    /// The root of a recipe that this node includes.
    pub(super) fn included(&self) -> Self {
        Self { own: self.below("."), prefix: self.prefix.clone() }
    }

    /// An attempt of this node, from 1.
    pub(super) fn attempt(&self, attempt: u32) -> Self {
        Self::of(format!("{}!{attempt}", self.own))
    }

    /// The timer of this attempt's timeout.
    pub(super) fn timeout(&self) -> String {
        format!("{}/@timeout", self.own)
    }

    /// The timer of the back-off behind this attempt.
    pub(super) fn backoff(&self) -> String {
        format!("{}/@backoff", self.own)
    }

    /// The name.
    pub(super) fn as_str(&self) -> &str {
        &self.own
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_specification_and_never_the_same_for_two_things() {
        let root = Path::root();
        let fetch = root.child("work").visit("poll", 3).child("fetch").attempt(2);
        assert_eq!(fetch.as_str(), "work/poll#3/fetch!2");
        assert_eq!(fetch.timeout(), "work/poll#3/fetch!2/@timeout");
        assert_eq!(root.timeout(), "./@timeout");
        assert_eq!(root.attempt(1).child("a").as_str(), ".!1/a");
        let include = root.child("inc");
        assert_eq!(include.included().child("a").as_str(), "inc/a");
        assert_ne!(include.included().timeout(), include.timeout());
        assert_eq!(include.included().attempt(2).child("a").as_str(), "inc/.!2/a");
    }
}
