//! Turns what went wrong into the two questions that matter: may it have happened, and what kind of trouble
//! is it? Only SQLSTATEs on the list below mean that it surely did not happen (D4).

use leasehold_actors::error::{Applied, StoreError, StoreErrorKind};
use tokio_postgres::error::{DbError, Severity, SqlState};

/// SQLSTATEs of errors that abort the statement before anything of it can be kept. A statement of ours is a
/// transaction of its own, so an ERROR with one of these means that nothing happened. Two-letter entries are
/// whole classes. What is not listed (08*, 40003, 57P01, XX*, …) means "maybe".
const SURELY_NOT: &[&str] = &[
    "0A",    // feature not supported
    "22",    // data exception
    "23",    // constraint violation
    "25006", // read-only transaction
    "25P02", // in a failed transaction: nothing before it is kept either
    "26000", // unknown prepared statement
    "3D",    // no such database
    "3F",    // no such schema
    "28",    // authorization
    "40001", // serialization failure
    "40P01", // deadlock
    "42",    // syntax, access rule, undefined table, duplicate prepared statement
    "53",    // out of memory, disk full (while it ran), too many connections
    "54",    // program limit exceeded
    "55006", // object in use
    "55P03", // lock not available
    "57014", // cancelled: while it ran; a cancelled wait for a standby is a warning, not an error
    "57P03", // cannot connect now
    "P0001", // raised by a function of ours
    "LH",    // the same, with a code of its own
];

fn surely_not(error: &DbError) -> bool {
    let code = error.code().code();
    // A FATAL ends the session, and may come after the commit was written.
    let plain = matches!(error.parsed_severity(), Some(Severity::Error) | None);
    plain && SURELY_NOT.iter().any(|listed| code.starts_with(listed))
}

/// May the statement have taken effect?
pub(crate) fn applied(error: &tokio_postgres::Error) -> Applied {
    match error.as_db_error() {
        Some(db) if surely_not(db) => Applied::No,
        Some(_) => Applied::Maybe,
        // Without a SQLSTATE it either broke on the way, or never left this process.
        None if never_sent(error) => Applied::No,
        None => Applied::Maybe,
    }
}

/// True when the driver refused the parameters: the request never left.
fn never_sent(error: &tokio_postgres::Error) -> bool {
    use std::error::Error as _;
    // The driver keeps its kinds private; a parameter that cannot be encoded carries this source.
    error.source().is_some_and(|s| s.is::<tokio_postgres::types::WrongType>())
}

fn kind(error: &tokio_postgres::Error) -> StoreErrorKind {
    let Some(db) = error.as_db_error() else {
        return if never_sent(error) { StoreErrorKind::Refused } else { StoreErrorKind::Unreachable };
    };
    let code = db.code();
    if *code == SqlState::LOCK_NOT_AVAILABLE
        || *code == SqlState::T_R_DEADLOCK_DETECTED
        || *code == SqlState::T_R_SERIALIZATION_FAILURE
    {
        StoreErrorKind::RowLocked
    } else if *code == SqlState::QUERY_CANCELED {
        StoreErrorKind::Timeout
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        StoreErrorKind::ReadOnly
    } else if matches!(&code.code()[..2], "08" | "53" | "57" | "58" | "XX") || is_wrong_server(code) {
        StoreErrorKind::Unreachable
    } else {
        StoreErrorKind::Refused
    }
}

/// True when the connection must not be used again: it is broken, or it points at a server that takes no
/// writes (after a failover a pooled session would otherwise stay there until the restart).
pub(crate) fn spoils_connection(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        None => true,
        Some(db) => {
            *db.code() == SqlState::READ_ONLY_SQL_TRANSACTION
                || is_wrong_server(db.code())
                || matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
                || db.code().code().starts_with("08")
        }
    }
}

/// True when the server, or a pooler before it, has no connection left.
pub(crate) fn is_full(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

/// True when the server takes no writes: a standby, or a database that was made read-only.
pub(crate) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// True when the server is not the fleet's primary any more, or this connection has not been introduced to it.
pub(crate) fn must_start_afresh(error: &tokio_postgres::Error) -> bool {
    is_read_only(error) || error.code().is_some_and(is_wrong_server)
}

/// True when the server was the primary until another one was promoted in its place.
pub(crate) fn is_superseded(error: &tokio_postgres::Error) -> bool {
    error.code().map(SqlState::code) == Some("LH011")
}

fn is_wrong_server(code: &SqlState) -> bool {
    matches!(code.code(), "LH010" | "LH011")
}

/// True for the warning that comes with the success of a commit whose wait for the standby was cut short: it stands
/// on this server, and a failover may undo it. (Its text depends on the server's language, its origin does not.)
pub(crate) fn is_unreplicated(notice: &DbError) -> bool {
    *notice.code() == SqlState::WARNING && notice.routine() == Some("SyncRepWaitForLSN")
}

/// A statement that succeeded, with [`is_unreplicated`] said meanwhile.
pub(crate) fn unreplicated(operation: &'static str) -> StoreError {
    StoreError {
        operation,
        kind: StoreErrorKind::Timeout,
        applied: Applied::Maybe,
        message: "committed, but the wait for the synchronous standby was cancelled".to_owned(),
    }
}

/// True when the server does not know a prepared statement that this session made, or knows another one of
/// that name: somebody between us and the server shares its sessions out by transaction.
pub(crate) fn is_lost_statement(error: &tokio_postgres::Error) -> bool {
    matches!(error.code().map(SqlState::code), Some("26000" | "42P05"))
}

/// True for a violation of exactly this unique key.
pub(crate) fn violates(error: &tokio_postgres::Error, constraint: &str) -> bool {
    error
        .as_db_error()
        .is_some_and(|db| *db.code() == SqlState::UNIQUE_VIOLATION && db.constraint() == Some(constraint))
}

/// One line for people: the server's message and SQLSTATE, or the transport's own words. The server's
/// detail is left out, since it may quote values.
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    match error.as_db_error() {
        Some(db) => format!("{} (SQLSTATE {})", db.message().replace(['\n', '\r'], " "), db.code().code()),
        None => match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

/// A statement that brought an error instead of an answer.
pub(crate) fn store_error(operation: &'static str, error: &tokio_postgres::Error) -> StoreError {
    StoreError { operation, kind: kind(error), applied: applied(error), message: describe(error) }
}

/// A call whose own time ran out while the statement was on its way.
pub(crate) fn timed_out(operation: &'static str, after: std::time::Duration) -> StoreError {
    StoreError {
        operation,
        kind: StoreErrorKind::Timeout,
        applied: Applied::Maybe,
        message: format!("no answer from the database within {after:?}"),
    }
}

/// A call for which no connection could be had: nothing was sent.
pub(crate) fn no_connection(operation: &'static str, message: impl Into<String>) -> StoreError {
    StoreError { operation, kind: StoreErrorKind::Unreachable, applied: Applied::No, message: message.into() }
}

/// A call that breaks a rule: nothing was sent, or nothing was done.
pub(crate) fn refused(operation: &'static str, message: impl Into<String>) -> StoreError {
    StoreError { operation, kind: StoreErrorKind::Refused, applied: Applied::No, message: message.into() }
}

/// A job that was submitted and stands in none of the tables of states: somebody deleted its row.
pub(crate) fn missing_row(operation: &'static str, job: leasehold_actors::domain::JobId) -> StoreError {
    refused(
        operation,
        format!(
            "job {job} was submitted, but its row is missing: it stands in none of waiting, ready, leases and ended; \
             `leasehold doctor --audit` says what to do"
        ),
    )
}

/// An answer that this program does not understand; it counts as no answer.
pub(crate) fn garbled(operation: &'static str, what: impl std::fmt::Display) -> StoreError {
    StoreError {
        operation,
        kind: StoreErrorKind::Refused,
        applied: Applied::Maybe,
        message: format!("the database answered something unexpected: {what}"),
    }
}
