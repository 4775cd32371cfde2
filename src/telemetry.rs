//! Logs: where they go, how they look, and what they never show.
//!
//! | setting | meaning |
//! |---|---|
//! | `LEASEHOLD_LOG`, else `RUST_LOG` | which events, as `tracing_subscriber::EnvFilter` reads it; default `info` |
//! | `LEASEHOLD_LOG_FORMAT` | `pretty` (default, one line an event, colour on a terminal) or `json` (one object a line) |
//!
//! Logs go to standard error, so that standard output stays what a command answers. Secrets are kept out by
//! their types (`LeaseToken` and the settings have no revealing `Debug`) and, for the libraries below us that
//! print the parameters of statements and the bodies of requests, by `FOREIGN`, which no setting can lift.

use std::io::IsTerminal as _;

use tracing::{Level, Metadata};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::filter_fn, fmt::MakeWriter, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Libraries whose events below INFO carry data: statement parameters (lease tokens), request bodies (the
/// environment of containers), headers and addresses (the credentials of probes).
const FOREIGN: &[&str] = &["tokio_postgres", "bollard", "hyper", "hyper_util", "reqwest", "rustls", "h2"];

/// A log setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("{setting}: {reason}; write for example {setting}=info or {setting}=warn,leasehold=debug")]
    Filter {
        /// The variable that holds it.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such format.
    #[error("LEASEHOLD_LOG_FORMAT: {0:?} is no format; use pretty or json")]
    Format(String),
    /// A subscriber is in place already.
    #[error("logs are set up already in this process; call telemetry::init once")]
    AlreadySet,
}

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// One line for a person.
    #[default]
    Pretty,
    /// One JSON object a line.
    Json,
}

impl std::str::FromStr for Format {
    type Err = TelemetryError;
    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "" | "pretty" => Ok(Self::Pretty),
            "json" => Ok(Self::Json),
            other => Err(TelemetryError::Format(other.to_owned())),
        }
    }
}

/// Sets up logging from the environment. `default_filter` is used when neither variable is set.
///
/// # Errors
/// [`TelemetryError`] when a setting cannot be used, or logging is set up already.
pub fn init(default_filter: &str) -> Result<(), TelemetryError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (setting, filter) = match (variable("LEASEHOLD_LOG"), variable("RUST_LOG")) {
        (Some(filter), _) => ("LEASEHOLD_LOG", filter),
        (None, Some(filter)) => ("RUST_LOG", filter),
        (None, None) => ("LEASEHOLD_LOG", default_filter.to_owned()),
    };
    let filter =
        EnvFilter::try_new(&filter).map_err(|e| TelemetryError::Filter { setting, reason: e.to_string() })?;
    let format = variable("LEASEHOLD_LOG_FORMAT").unwrap_or_default().parse()?;

    let colour = std::io::stderr().is_terminal() && variable("NO_COLOR").is_none();
    tracing_subscriber::registry()
        .with(layer(format, colour, filter, std::io::stderr))
        .try_init()
        .map_err(|_| TelemetryError::AlreadySet)
}

fn layer<W>(
    format: Format,
    colour: bool,
    filter: EnvFilter,
    writer: W,
) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer::<Registry>().with_writer(writer);
    let lines = match format {
        Format::Pretty => lines.with_ansi(colour).boxed(),
        Format::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
    };
    lines.with_filter(filter_fn(is_safe)).with_filter(filter).boxed()
}

/// False for the events that may carry secrets.
fn is_safe(event: &Metadata<'_>) -> bool {
    *event.level() <= Level::INFO || !is_foreign(event.target())
}

/// Whether a target belongs to one of the [`FOREIGN`] libraries.
fn is_foreign(target: &str) -> bool {
    let root = target.split("::").next().unwrap_or(target);
    FOREIGN.contains(&root)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic while locked").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: Format, filter: &str, events: impl FnOnce()) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let layer = layer(format, false, EnvFilter::new(filter), move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), events);
        let bytes = kept.0.lock().expect("no panic while locked").clone();
        String::from_utf8(bytes).expect("logs are text")
    }

    /// Statement parameters hold lease tokens, request bodies the environment of containers: no filter that an
    /// operator sets shows them.
    #[test]
    fn events_that_carry_parameters_are_dropped_whatever_the_filter_says() {
        let text = logged(Format::Pretty, "trace,tokio_postgres=trace,bollard=trace", || {
            tracing::debug!(target: "tokio_postgres::query", "executing with parameters: the-token");
            tracing::trace!(target: "bollard::docker", "{{\"Env\": [\"PASSWORD=the-secret\"]}}");
            tracing::info!(target: "tokio_postgres::connection", "a notice");
            tracing::trace!(target: "leasehold::postgres", "ours");
        });
        assert!(!text.contains("the-token") && !text.contains("the-secret"), "{text}");
        assert!(text.contains("a notice") && text.contains("ours"), "{text}");
    }

    #[test]
    fn json_is_one_object_a_line_with_its_spans() {
        let text = logged(Format::Json, "info", || {
            let span = tracing::info_span!("job", job = 7, epoch = 3);
            let _entered = span.enter();
            tracing::info!(left = 2, "renewed");
            tracing::debug!("not this one");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
        assert_eq!((&line["message"], &line["left"]), (&"renewed".into(), &2.into()), "{line}");
        assert_eq!((&line["spans"][0]["job"], &line["spans"][0]["epoch"]), (&7.into(), &3.into()), "{line}");
    }

    #[test]
    fn an_unknown_format_is_refused_by_name() {
        let error = "xml".parse::<Format>().expect_err("xml is no format");
        assert_eq!(error.to_string(), "LEASEHOLD_LOG_FORMAT: \"xml\" is no format; use pretty or json");
        assert_eq!("json".parse::<Format>(), Ok(Format::Json));
    }

    #[test]
    fn libraries_that_print_parameters_are_told_from_others_of_similar_names() {
        assert!(is_foreign("tokio_postgres::query"));
        assert!(is_foreign("hyper"));
        assert!(!is_foreign("hyperactive"));
        assert!(!is_foreign("leasehold::postgres"));
    }
}
