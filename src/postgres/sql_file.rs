//! One statement, one file: the text under `sql/`, its name, and the types of its parameters.
//!
//! The types stand here and not in the text, so that a statement can be sent in one round trip without being
//! prepared (through a transaction pooler), and so that no parameter's type depends on the planner's guess.
//! Columns that a statement returns are always of built-in types (enums are cast to text): an unknown type
//! would make the driver ask the catalog first, with a prepared statement.

use tokio_postgres::types::Type;

/// A statement of this store.
#[derive(Debug)]
pub(crate) struct Sql {
    /// The file's name without its ending; also the operation's name in errors and metrics.
    pub(crate) name: &'static str,
    /// The text.
    pub(crate) text: &'static str,
    /// The parameters' types, in order.
    pub(crate) types: &'static [Type],
}

/// `sql!("renew", [INT8_ARRAY, UUID_ARRAY])`: the statement in `sql/renew.sql` with its parameters' types.
macro_rules! sql {
    ($name:literal, [$($ty:ident),* $(,)?]) => {
        $crate::postgres::sql_file::Sql {
            name: $name,
            text: include_str!(concat!("sql/", $name, ".sql")),
            types: &[$(tokio_postgres::types::Type::$ty),*],
        }
    };
}
pub(crate) use sql;

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The first line says why the file exists, a file holds one statement, and no file is left over.
    #[test]
    fn every_statement_says_why_it_exists() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/postgres");
        let mut rust = String::new();
        for file in std::fs::read_dir(&here).expect("src/postgres exists").flatten() {
            if file.path().extension().is_some_and(|e| e == "rs") {
                rust.push_str(&std::fs::read_to_string(file.path()).expect("a source file is text"));
            }
        }
        let mut seen = 0;
        for file in std::fs::read_dir(here.join("sql")).expect("src/postgres/sql exists").flatten() {
            let name = file.file_name().into_string().expect("file names are text");
            let text = std::fs::read_to_string(file.path()).expect("a statement is text");
            let first = text.lines().next().unwrap_or_default();
            let why = first.strip_prefix(&format!("-- {name}: ")).unwrap_or_default();
            assert!(why.len() > 15, "{name}: the first line must be `-- {name}: why it exists`");
            let body: String =
                text.lines().map(|l| l.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
            let body = body.trim().trim_end_matches(';');
            assert!(!body.contains(';'), "{name} holds more than one statement");
            let stem = name.trim_end_matches(".sql");
            assert!(rust.contains(&format!("\"{stem}\"")), "{name} is used nowhere");
            seen += 1;
        }
        let _ = seen;
    }
}
