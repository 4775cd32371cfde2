//! Reads columns by name, and turns what cannot be read into an error instead of a panic.

use std::{fmt::Display, str::FromStr};

use chrono::{DateTime, Utc};
use leasehold_actors::error::StoreError;
use serde_json::value::RawValue;
use tokio_postgres::{
    Row,
    types::{FromSql, Timestamp},
};

use super::error;

/// One row of the answer to an operation.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    row: &'a Row,
    operation: &'static str,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(operation: &'static str, row: &'a Row) -> Self {
        Self { row, operation }
    }

    /// The one row that a statement always answers with.
    pub(crate) fn only(operation: &'static str, rows: &'a [Row]) -> Result<Self, StoreError> {
        match rows {
            [row] => Ok(Self::new(operation, row)),
            _ => Err(error::garbled(operation, format!("{} rows instead of one", rows.len()))),
        }
    }

    pub(crate) fn get<T: FromSql<'a>>(&self, column: &str) -> Result<T, StoreError> {
        self.row
            .try_get(column)
            .map_err(|e| error::garbled(self.operation, format!("column {column}: {}", error::describe(&e))))
    }

    /// A column of time that may be null. What is no time (`infinity`: no statement of ours writes that into a column that
    /// people read, but they can) is shown as none, so that one such row does not hide the others.
    pub(crate) fn instant(&self, column: &str) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(match self.get::<Option<Timestamp<DateTime<Utc>>>>(column)? {
            Some(Timestamp::Value(at)) => Some(at),
            Some(Timestamp::PosInfinity | Timestamp::NegInfinity) | None => None,
        })
    }

    /// A column of text whose words are those of a closed type.
    pub(crate) fn parse<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, StoreError> {
        let text: &str = self.get(column)?;
        text.parse().map_err(|e| error::garbled(self.operation, format!("column {column}: {e}")))
    }

    /// As [`Columns::parse`], of a column that may be null.
    pub(crate) fn parse_opt<T: FromStr<Err: Display>>(&self, column: &str) -> Result<Option<T>, StoreError> {
        let text: Option<&str> = self.get(column)?;
        text.map(str::parse)
            .transpose()
            .map_err(|e| error::garbled(self.operation, format!("column {column}: {e}")))
    }

    /// JSON text, as it is stored.
    pub(crate) fn raw(&self, column: &str) -> Result<Box<RawValue>, StoreError> {
        let text: String = self.get(column)?;
        RawValue::from_string(text)
            .map_err(|e| error::garbled(self.operation, format!("column {column}: {e}")))
    }

    /// As [`Columns::raw`], of a column that may be null.
    pub(crate) fn raw_opt(&self, column: &str) -> Result<Option<Box<RawValue>>, StoreError> {
        let text: Option<String> = self.get(column)?;
        text.map(RawValue::from_string)
            .transpose()
            .map_err(|e| error::garbled(self.operation, format!("column {column}: {e}")))
    }

    /// JSON made by the statement itself.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<T, StoreError> {
        let text: &str = self.get(column)?;
        serde_json::from_str(text)
            .map_err(|e| error::garbled(self.operation, format!("column {column}: {e}")))
    }
}
