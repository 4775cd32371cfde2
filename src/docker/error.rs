//! What an engine's refusals mean. The only place that reads Docker's words: the API gives the same status
//! for a missing command and a missing network, and 500 for a mistyped user name.

use std::{fmt::Write as _, time::Duration};

use bollard::errors::Error;
use leasehold_actors::error::{Applied, EngineError, EngineErrorKind};

/// The command cannot be invoked: not executable, wrong architecture, no such user or directory.
pub(super) const CANNOT_INVOKE: i32 = 126;
/// The command was not found.
pub(super) const NOT_FOUND: i32 = 127;

/// An error without an engine's words behind it.
pub(super) fn engine_error(
    operation: &'static str,
    kind: EngineErrorKind,
    applied: Applied,
    message: impl Into<String>,
) -> EngineError {
    EngineError { operation, kind, applied, message: message.into(), exit_code: None }
}

/// The engine did not answer in time, so nobody knows.
pub(super) fn timed_out(operation: &'static str, limit: Duration) -> EngineError {
    engine_error(
        operation,
        EngineErrorKind::Timeout,
        Applied::Maybe,
        format!("the engine did not answer within {}", humantime::format_duration(limit)),
    )
}

/// Classifies what bollard reports for calls about a container or about the engine itself.
pub(super) fn classify(operation: &'static str, error: Error) -> EngineError {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            refusal(operation, status_code, &message)
        }
        Error::RequestTimeoutError => engine_error(
            operation,
            EngineErrorKind::Timeout,
            Applied::Maybe,
            "the engine did not answer in time",
        ),
        Error::HyperLegacyError { err } => {
            // Without a connection no request was sent.
            let applied = if err.is_connect() { Applied::No } else { Applied::Maybe };
            engine_error(operation, EngineErrorKind::Unreachable, applied, causes(&err))
        }
        Error::SocketNotFoundError(path) => engine_error(
            operation,
            EngineErrorKind::Unreachable,
            Applied::No,
            format!("no socket at {path}; is the engine running?"),
        ),
        Error::HyperResponseError { err } => {
            engine_error(operation, EngineErrorKind::Unreachable, Applied::Maybe, causes(&err))
        }
        Error::IOError { err } => {
            engine_error(operation, EngineErrorKind::Unreachable, Applied::Maybe, causes(&err))
        }
        Error::DockerStreamError { error } => {
            engine_error(operation, EngineErrorKind::Engine, Applied::Maybe, one_line(&error))
        }
        other => engine_error(
            operation,
            EngineErrorKind::Engine,
            Applied::Maybe,
            format!("unexpected answer: {}", one_line(&other.to_string())),
        ),
    }
}

/// Classifies a status and the engine's words. A 404 alone tells nothing: it is also the answer for a network, and
/// for a sandbox that a live-restoring engine could not restore, of a container that runs.
fn refusal(operation: &'static str, status: u16, message: &str) -> EngineError {
    let kind = match status {
        _ if is_version_refusal(message) => EngineErrorKind::Engine,
        _ if speaks_tls(message) => EngineErrorKind::Engine,
        400 => EngineErrorKind::BadRequest,
        404 if speaks_of(message, "no such container") => EngineErrorKind::NoSuchContainer,
        404 if speaks_of(message, "no such image") || speaks_of(message, "image not known") => {
            EngineErrorKind::NoSuchImage
        }
        409 => EngineErrorKind::Conflict,
        _ => EngineErrorKind::Engine,
    };
    // A 5xx may come after the deed: a start that worked has been seen to answer 500.
    let applied = if status >= 500 { Applied::Maybe } else { Applied::No };
    let words = if message.trim().is_empty() { format!("HTTP status {status}") } else { one_line(message) };
    let message = if is_version_refusal(message) {
        format!("the engine speaks another API version: {words}")
    } else if speaks_tls(message) {
        format!("the engine expects TLS ({words}); set RUNTIME_TLS_CA, RUNTIME_TLS_CERT and RUNTIME_TLS_KEY")
    } else {
        words
    };
    engine_error(operation, kind, applied, message)
}

/// The engine refuses our API version, as too old or too new.
pub(super) fn is_version_refusal(message: &str) -> bool {
    message.contains("client version") && (message.contains("too old") || message.contains("too new"))
}

fn speaks_of(message: &str, words: &str) -> bool {
    message.to_ascii_lowercase().contains(words)
}

/// "network x not found", of a network that the job's definition names. (A 5xx in such words is the engine's trouble.)
fn misses_a_network(error: &EngineError) -> bool {
    error.applied == Applied::No && error.message.contains("network ") && error.message.ends_with("not found")
}

fn speaks_tls(message: &str) -> bool {
    message.contains("HTTP request to an HTTPS server")
}

/// What a refused create means.
pub(super) fn classify_create(mut error: EngineError) -> EngineError {
    if error.kind == EngineErrorKind::NoSuchContainer || misses_a_network(&error) {
        // Of another container or a network that the definition names; this one is only being created.
        error.kind = EngineErrorKind::BadRequest;
    } else if NOT_A_DIRECTORY.iter().any(|words| error.message.contains(words)) {
        // Not a 400, though it is the definition's fault.
        error.kind = EngineErrorKind::BadRequest;
        error.exit_code = Some(CANNOT_INVOKE);
    }
    error
}

/// Words of dockerd for a working directory that is relative, or a file.
const NOT_A_DIRECTORY: [&str; 2] = ["working directory", "is not a directory"];

/// What a refused start means, once inspection has shown that the container did not run. `code` is what the
/// engine wrote down as its exit code: 127 or 126 by its own judgement, 128 where it had none.
pub(super) fn classify_failed_start(mut error: EngineError, code: Option<i64>) -> EngineError {
    let exit_code = match code {
        Some(127) => Some(NOT_FOUND),
        Some(126) => Some(CANNOT_INVOKE),
        _ if CANNOT_START.iter().any(|words| error.message.contains(words)) => Some(CANNOT_INVOKE),
        _ => None,
    };
    if exit_code.is_some() {
        error.kind = EngineErrorKind::BadRequest;
        error.exit_code = exit_code;
    } else if error.kind == EngineErrorKind::NoSuchContainer || misses_a_network(&error) {
        // This one is there: it is another container, or a network, that the job's definition names.
        error.kind = EngineErrorKind::BadRequest;
    }
    error.applied = Applied::No;
    error
}

/// Words of runc and dockerd for a process that can never be started as the job asks.
const CANNOT_START: [&str; 9] = [
    "unable to find user",
    "unable to find group",
    "no matching entries in passwd file",
    "no matching entries in group file",
    "exec format error",
    "chdir to cwd",
    "argument list too long",
    "not a directory",
    "is a directory",
];

/// What a failed pull means: `NoSuchImage` when no later pull can succeed without somebody acting,
/// `PullFailed` when one may.
pub(super) fn classify_pull(image: &str, mut error: EngineError) -> EngineError {
    if matches!(error.kind, EngineErrorKind::Unreachable | EngineErrorKind::Timeout) {
        return error;
    }
    error.kind = if NEVER_PULLABLE.iter().any(|words| error.message.contains(words)) {
        EngineErrorKind::NoSuchImage
    } else {
        EngineErrorKind::PullFailed
    };
    error.message = format!("image {image}: {}", error.message);
    error
}

/// Words of registries and of dockerd for an image that no retry will bring.
const NEVER_PULLABLE: [&str; 12] = [
    "manifest unknown",
    "manifest for",
    "name unknown",
    "repository name not known",
    "repository does not exist",
    "access denied",
    "access to the resource is denied",
    "unauthorized",
    "no basic auth credentials",
    "invalid reference format",
    "no matching manifest",
    "not found: does not exist",
];

/// An error and all that caused it, without repeating what a cause's text already holds.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            let _ = write!(text, ": {words}");
        }
        next = cause.source();
    }
    one_line(&text)
}

/// Engines answer with line breaks and with whole stack traces of runc; people need one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError { status_code, message: message.to_owned() }
    }

    #[test]
    fn statuses_become_kinds_and_only_a_server_error_may_have_happened() {
        for (status, kind, applied) in [
            (400, EngineErrorKind::BadRequest, Applied::No),
            (404, EngineErrorKind::Engine, Applied::No),
            (409, EngineErrorKind::Conflict, Applied::No),
            (403, EngineErrorKind::Engine, Applied::No),
            (500, EngineErrorKind::Engine, Applied::Maybe),
            (503, EngineErrorKind::Engine, Applied::Maybe),
        ] {
            let error = classify("stop", answer(status, "words\nof the engine"));
            assert_eq!((error.kind, error.applied), (kind, applied), "{status}");
            assert_eq!(error.message, "words of the engine");
        }
    }

    #[test]
    fn a_404_is_believed_for_what_it_names_and_nothing_else() {
        for (words, kind) in [
            ("No such container: 4f0e", EngineErrorKind::NoSuchContainer),
            (
                "no container with name or ID \"4f0e\" found: no such container",
                EngineErrorKind::NoSuchContainer,
            ),
            ("No such image: lab/none:9", EngineErrorKind::NoSuchImage),
            ("sandbox 2b302ab1 not found", EngineErrorKind::Engine),
            ("network lab not found", EngineErrorKind::Engine),
            ("page not found", EngineErrorKind::Engine),
            ("", EngineErrorKind::Engine),
        ] {
            let error = classify("mark", answer(404, words));
            assert_eq!((error.kind, error.applied), (kind, Applied::No), "{words}");
        }
    }

    #[test]
    fn what_a_definition_names_and_the_engine_has_not_is_the_definitions_fault() {
        for words in ["network lab not found", "No such container: the-other"] {
            let create = classify_create(classify("create", answer(404, words)));
            let start = classify_failed_start(classify("start", answer(404, words)), Some(128));
            assert_eq!([create.kind, start.kind], [EngineErrorKind::BadRequest; 2], "{words}");
        }
        let start = classify_failed_start(classify("start", answer(404, "sandbox 2b30 not found")), Some(0));
        assert_eq!(start.kind, EngineErrorKind::Engine);
    }

    /// DK-31
    #[test]
    fn a_refused_api_version_is_the_engines_trouble_not_the_jobs() {
        let words = "client version 1.41 is too old. Minimum supported API version is 1.44, please upgrade";
        let error = classify("create", answer(400, words));
        assert_eq!(error.kind, EngineErrorKind::Engine);
        assert!(error.is_retryable());
        assert!(error.message.contains("1.44"), "{}", error.message);
    }

    #[test]
    fn plain_http_to_a_tls_port_names_the_settings() {
        let error = classify("info", answer(400, "Client sent an HTTP request to an HTTPS server.\n"));
        assert_eq!(error.kind, EngineErrorKind::Engine);
        assert!(error.message.contains("RUNTIME_TLS_CA"), "{}", error.message);
    }

    #[test]
    fn a_create_without_its_image_is_no_missing_container() {
        let error = classify_create(classify("create", answer(404, "No such image: lab/none:9")));
        assert_eq!(error.kind, EngineErrorKind::NoSuchImage);
        assert!(!error.is_retryable());
    }

    /// DK-07
    #[test]
    fn a_failed_start_is_told_by_the_engines_code_and_words() {
        let runc = "failed to create shim task: OCI runtime create failed: runc create failed: ";
        for (words, code, expected) in [
            ("exec: \"nope\": executable file not found in $PATH: unknown", Some(127), Some(127)),
            ("exec: \"/etc/passwd\": permission denied: unknown", Some(126), Some(126)),
            ("exec /bin/other: exec format error", Some(128), Some(126)),
            (
                "chdir to cwd (\"/nope\") set in config.json failed: no such file or directory",
                Some(128),
                Some(126),
            ),
            ("unable to find user nobody-here: no matching entries in passwd file", Some(128), Some(126)),
            ("mkdir /bin/busybox: not a directory", Some(128), Some(126)),
            ("cgroup: no space left on device", Some(128), None),
        ] {
            let error =
                classify_failed_start(classify("start", answer(500, &format!("{runc}{words}"))), code);
            assert_eq!(error.exit_code, expected, "{words}");
            assert_eq!(error.kind == EngineErrorKind::BadRequest, expected.is_some(), "{words}");
        }
    }

    /// DK-27
    #[test]
    fn a_pull_that_no_retry_can_cure_is_told_from_one_that_a_retry_may() {
        for (words, permanent) in [
            ("manifest for 127.0.0.1:5000/a:nope not found: manifest unknown: manifest unknown", true),
            (
                "pull access denied for lab/none, repository does not exist or may require 'docker login'",
                true,
            ),
            ("Get \"http://127.0.0.1:5000/v2/\": no basic auth credentials", true),
            ("unauthorized: authentication required", true),
            ("no matching manifest for linux/amd64 in the manifest list entries", true),
            (
                "Get \"http://127.0.0.1:5000/v2/\": dial tcp 127.0.0.1:5000: connect: connection refused",
                false,
            ),
            ("toomanyrequests: You have reached your pull rate limit", false),
            ("unexpected EOF", false),
            ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", false),
        ] {
            let inside = Error::DockerStreamError { error: words.to_owned() };
            for error in [inside, answer(500, words)] {
                let error = classify_pull("lab/x:1", classify("pull", error));
                let kind = if permanent { EngineErrorKind::NoSuchImage } else { EngineErrorKind::PullFailed };
                assert_eq!(error.kind, kind, "{words}");
                assert!(error.message.contains(words), "{}", error.message);
            }
        }
    }
}
