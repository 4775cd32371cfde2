//! What is wrong with a recipe, and where: file, line and column.

use std::{fmt, path::Path};

use serde::Serialize;

use super::limits::MAX_REPORTED;

/// A place in a file; lines and columns count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub struct Place {
    /// Line; 0 for the file as a whole.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Mistake {
    /// The file, as the bundle names it: relative to the root recipe's folder.
    pub file: String,
    /// Where in the file.
    #[serde(flatten)]
    pub place: Place,
    /// What is wrong and what is allowed, in one line.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}:{}: {}", self.file, self.place.column, self.message),
        }
    }
}

/// Everything that one check found; never empty where it is returned as an error.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, thiserror::Error)]
pub struct Mistakes {
    /// In the order of files, lines and columns.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, mistake) in self.mistakes.iter().enumerate() {
            if n > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

impl Mistakes {
    /// Just one.
    pub(super) fn one(file: &str, place: Place, message: impl Into<String>) -> Self {
        let mut mistakes = Self::default();
        mistakes.add(file, place, message);
        mistakes
    }

    pub(super) fn add(&mut self, file: &str, place: Place, message: impl Into<String>) {
        if self.mistakes.len() < MAX_REPORTED {
            self.mistakes.push(Mistake { file: file.to_owned(), place, message: message.into() });
        }
    }

    /// Names files as whoever named the recipe's file would, so that an editor can open them.
    pub fn below(&mut self, recipe: &Path) {
        if let Some(folder) = recipe.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            for mistake in &mut self.mistakes {
                mistake.file = folder.join(&mistake.file).display().to_string();
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Fails when there is any.
    pub(super) fn none_or(mut self) -> Result<(), Self> {
        if self.is_empty() {
            return Ok(());
        }
        self.mistakes.sort();
        self.mistakes.dedup();
        Err(self)
    }
}
