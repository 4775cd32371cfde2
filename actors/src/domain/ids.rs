//! Identities that cross a port. Each is a type of its own, so that a job id is never passed where an
//! epoch is meant, and a lease token can neither be printed nor serialized by accident.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::job::JobKind;

/// An identity that does not keep the rules for its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {reason}")]
pub struct InvalidId {
    /// Which identity was refused, for example `namespace`.
    pub what: &'static str,
    /// The rule that it breaks, in words for a person.
    pub reason: String,
}

/// Refuses names that could not be shown, stored or matched safely: empty, over 200 bytes, or with
/// control characters (NUL would be refused by PostgreSQL, the others would act on a terminal).
fn check_name(what: &'static str, name: &str) -> Result<(), InvalidId> {
    let reason = if name.is_empty() {
        "must not be empty".to_owned()
    } else if name.len() > 200 {
        format!("is {} bytes long; at most 200 are allowed", name.len())
    } else if let Some(c) = name.chars().find(|c| c.is_control()) {
        format!("must not contain the control character U+{:04X}", u32::from(c))
    } else if name.trim() != name {
        "must not begin or end with white space".to_owned()
    } else {
        return Ok(());
    };
    Err(InvalidId { what, reason })
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks and wraps a name.
            ///
            /// # Errors
            /// [`InvalidId`] when it is empty, longer than 200 bytes, padded with white space, or holds a control character.
            pub fn new(name: impl Into<String>) -> Result<Self, InvalidId> {
                let name = name.into();
                check_name($what, &name)?;
                Ok(Self(name))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(name: String) -> Result<Self, InvalidId> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;
            fn from_str(name: &str) -> Result<Self, InvalidId> {
                Self::new(name)
            }
        }
    };
}

name_type!(
    /// The tenant that a row belongs to; `default` unless the operator says otherwise.
    Namespace,
    "namespace"
);
name_type!(
    /// The operator-given name of a worker. Several processes may have borne it, one after the other.
    WorkerId,
    "worker id"
);
name_type!(
    /// The operator-given name of a runtime node (one Docker engine).
    NodeId,
    "node id"
);
name_type!(
    /// The engine's own id of a container.
    ContainerId,
    "container id"
);

impl Default for Namespace {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

/// A job, unique in the database; later jobs have higher ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fencing epoch of a grant: strictly rising for one job with every claim and takeover. Not secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

name_type!(
    /// Names one occurrence of a recipe's task among those of its job: a hash of its path, so that it fits into labels
    /// and keys however long the path is.
    TaskKey,
    "task key"
);

macro_rules! uuid_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A fresh identity, ordered by time of creation.
            #[must_use]
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_type!(
    /// One life of a worker process. A restarted process with the same [`WorkerId`] has another one and
    /// owns none of its predecessor's leases.
    ProcessId
);
uuid_type!(
    /// Names one request, so that its repeat after a lost answer is recognised as the same request.
    CommandId
);

/// The secret that proves ownership of one grant: 128 random bits, never derived from anything.
///
/// It has no `Display`, no `Serialize` and a `Debug` that shows nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseToken(Uuid);

impl LeaseToken {
    /// Draws 128 bits from the operating system's generator.
    #[must_use]
    pub fn generate() -> Self {
        // Two v4 uuids give 244 random bits; the fixed version bits of a single one would leave only 122.
        let (a, b) = (Uuid::new_v4().as_u128(), Uuid::new_v4().as_u128());
        Self(Uuid::from_u128(a ^ b.rotate_left(64)))
    }

    /// Wraps a token that was read from the store.
    #[must_use]
    pub fn from_store(token: Uuid) -> Self {
        Self(token)
    }

    /// The secret itself. Only a store adapter, or the exporter of a capability, has a reason to call this.
    #[must_use]
    pub fn expose_to_store(&self) -> Uuid {
        self.0
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(redacted)")
    }
}

/// What a worker polls for: a kind of job and, where the kind has one, the name of the code that runs it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    /// The kind of job.
    pub kind: JobKind,
    /// HANDLER: the handler's name. RECIPE: the job type. Otherwise empty.
    pub name: String,
    /// RECIPE: the op of the task to go on with. Otherwise empty.
    pub task: String,
}

impl Route {
    /// The route of every CONTAINER job.
    #[must_use]
    pub fn container() -> Self {
        Self { kind: JobKind::Container, name: String::new(), task: String::new() }
    }

    /// The route of every HEARTBEAT job.
    #[must_use]
    pub fn heartbeat() -> Self {
        Self { kind: JobKind::Heartbeat, name: String::new(), task: String::new() }
    }

    /// The route of the HANDLER jobs for one registered handler.
    #[must_use]
    pub fn handler(name: impl Into<String>) -> Self {
        Self { kind: JobKind::Handler, name: name.into(), task: String::new() }
    }

    /// The route of the RECIPE jobs of one job type whose next task is of this op; the op is empty where a job begins.
    #[must_use]
    pub fn recipe(job_type: impl Into<String>, op: impl Into<String>) -> Self {
        Self { kind: JobKind::Recipe, name: job_type.into(), task: op.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_shows_nothing_of_itself() {
        let token = LeaseToken::generate();
        let secret = token.expose_to_store().to_string();
        let shown = format!("{token:?}");
        assert!(!shown.contains(&secret[..4]), "{shown}");
    }

    #[test]
    fn names_with_control_characters_are_refused() {
        for bad in ["", "a\0b", "a\u{1b}[2J", " a", "a ", &"x".repeat(201)] {
            assert!(WorkerId::new(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(WorkerId::new("w-1").expect("a plain name").as_str(), "w-1");
    }
}
