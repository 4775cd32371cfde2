//! What belongs to `--http`.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use leasehold_actors::domain::HeartbeatSpec;

use super::{super::error::CliError, millis};

const NOT_HTTP: [&str; 4] = ["image", "handler", "workflow", "recipe"];
const HEARTBEAT: &str = "Heartbeat";

#[derive(Debug, Clone, Default, Args)]
pub(super) struct HeartbeatArgs {
    /// Request method [default: GET]
    #[arg(long, value_name = "METHOD", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    method: Option<String>,
    /// Statuses that count as healthy [default: 200 to 299]; may be repeated
    #[arg(long, value_name = "CODE", value_delimiter = ',', help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    expect_status: Vec<u16>,
    /// A request header; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    header: Vec<String>,
    /// Request body
    #[arg(long, value_name = "TEXT", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    body: Option<String>,
    /// A regular expression that the answer's body must match
    #[arg(long, value_name = "REGEX", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    body_match: Option<String>,
    /// How many redirects to follow [default: 0]
    #[arg(long, value_name = "N", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    max_redirects: Option<u8>,
    /// Accept any certificate
    #[arg(long, help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    insecure_skip_tls_verify: bool,
}

impl HeartbeatArgs {
    /// The definition; `timeout` is the probe's own limit.
    pub(super) fn spec(&self, url: &str, timeout: Option<Duration>) -> Result<HeartbeatSpec, CliError> {
        let mut headers = BTreeMap::new();
        for header in &self.header {
            let (name, value) = header.split_once(':').ok_or_else(|| {
                CliError::usage(format!("--header {header:?} has no colon; write 'Name: value'"))
            })?;
            if headers.insert(name.trim().to_owned(), value.trim().to_owned()).is_some() {
                return Err(CliError::usage(format!(
                    "--header {:?} is given twice; give it once",
                    name.trim()
                )));
            }
        }
        let mut spec: HeartbeatSpec = serde_json::from_value(serde_json::json!({ "url": url }))
            .map_err(|e| CliError::usage(format!("--http: {e}")))?;
        if let Some(method) = &self.method {
            spec.method = method.to_ascii_uppercase();
        }
        spec.expected_status.clone_from(&self.expect_status);
        spec.headers = headers;
        spec.body.clone_from(&self.body);
        spec.body_match.clone_from(&self.body_match);
        spec.max_redirects = self.max_redirects.unwrap_or(0);
        if let Some(timeout) = timeout {
            spec.timeout_ms = millis("timeout", timeout)?;
        }
        spec.insecure_skip_tls_verify = self.insecure_skip_tls_verify;
        Ok(spec)
    }
}
