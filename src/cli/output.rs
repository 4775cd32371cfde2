//! What commands print: tables for people, JSON for programs, and whether colour and progress are wanted.

use std::io::{self, IsTerminal as _, Write as _};

use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use leasehold_actors::domain::JobState;
use serde::Serialize;

use super::{error::CliError, text};

/// True when colour and moving progress are welcome on standard error.
#[must_use]
pub(super) fn is_lively() -> bool {
    io::stderr().is_terminal() && !no_colour()
}

fn no_colour() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// One line on standard output.
pub(super) fn line(text: &str) -> Result<(), CliError> {
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(())
}

/// One line on standard error that is no error: progress and hints. A closed standard error is no reason to stop.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text::one_line(text));
}

/// One JSON object on a line of its own.
pub(super) fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value)
        .map_err(|e| CliError::new(super::Exit::Failed, format!("cannot write the answer as JSON: {e}")))?;
    line(&text::json(text))
}

/// JSON that another program reads back: byte for byte, except on a terminal.
pub(super) fn document(text: &str) -> Result<(), CliError> {
    if io::stdout().is_terminal() { line(&text::json(text.to_owned())) } else { line(text) }
}

/// A table for people. Cells are made harmless here, so no caller can forget it.
pub(super) struct Listing {
    table: Table,
    colour: bool,
}

impl Listing {
    pub(super) fn new(header: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(header.iter().map(|title| Cell::new(title.to_uppercase())));
        let colour = io::stdout().is_terminal() && !no_colour();
        if !colour {
            table.force_no_tty();
        }
        Self { table, colour }
    }

    /// Name and value pairs, without a header.
    pub(super) fn facts() -> Self {
        let mut listing = Self::new(&[]);
        listing.table = {
            let mut table = Table::new();
            table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
            table
        };
        listing
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        let cells: Vec<Cell> = cells.iter().map(|content| self.cell(content)).collect();
        self.table.add_row(cells);
    }

    fn cell(&self, content: &str) -> Cell {
        let cell = Cell::new(text::one_line(content));
        let colour = match content {
            _ if !self.colour => None,
            "COMPLETED" | "READY" | "ACTIVE" | "ok" => Some(Color::Green),
            "FAILED" | "UNHEALTHY" | "TERMINATED" | "fail" => Some(Color::Red),
            "RUNNING" => Some(Color::Cyan),
            "CANCELED" | "DRAINING" | "PAUSED" | "warn" => Some(Color::Yellow),
            _ => None,
        };
        match colour {
            Some(colour) => cell.fg(colour),
            None => cell,
        }
    }

    pub(super) fn print(self) -> Result<(), CliError> {
        for text in self.table.to_string().lines() {
            // The style without borders still leaves room for the left one.
            line(text.strip_prefix(' ').unwrap_or(text).trim_end())?;
        }
        Ok(())
    }
}

/// A value that may be missing.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// An instant for people.
pub(super) fn instant(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The words after a job's id in progress lines.
pub(super) fn state_words(state: JobState) -> &'static str {
    match state {
        JobState::Pending => "waits",
        JobState::Queued => "is queued",
        JobState::Running => "runs",
        JobState::Completed => "completed",
        JobState::Failed => "failed",
        JobState::Canceled => "was canceled",
    }
}
