//! Where values come from: flag over environment over file over default. Every given value is checked, also
//! those that a higher source outdoes, so that no mistake waits for the day when it counts.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    ConfigError, database_url,
    table::{Fallback, Key, Kind, Setting, TABLE, setting},
    value::{self, Value},
};

/// The environment variable that names the file; the flag is `--config`.
pub const FILE_VARIABLE: &str = "LEASEHOLD_CONFIG";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag of this command.
    Flag,
    /// The environment.
    Environment,
    /// The file.
    File(PathBuf),
    /// A running `leasehold dev`.
    Dev(PathBuf),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment => f.write_str("environment"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Dev(path) => write!(f, "leasehold dev in {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What the three sources said, still as text.
#[derive(Default, Clone)]
pub struct Sources {
    /// Flags, by key.
    pub flags: BTreeMap<Key, String>,
    /// The process's environment.
    pub environment: HashMap<String, OsString>,
    /// `--config`; without it `LEASEHOLD_CONFIG` counts.
    pub file: Option<PathBuf>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Sources {
    /// Flags as given, and the environment of this process.
    #[must_use]
    pub fn of_process(flags: BTreeMap<Key, String>, file: Option<PathBuf>) -> Self {
        let environment =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
        Self { flags, environment, file }
    }
}

/// Every setting with its value, checked one by one; relations between them are checked by what is built from them.
#[derive(Clone)]
pub struct Effective {
    values: BTreeMap<Key, (Value, Origin)>,
    /// Variables that look like settings and are none.
    pub unknown_variables: Vec<String>,
}

impl fmt::Debug for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self.rows().into_iter().filter_map(|row| row.value.map(|value| (row.name, value)));
        f.debug_map().entries(given).finish()
    }
}

/// One line of `leasehold config`.
#[derive(Debug, Clone, serde::Serialize)]
pub struct EffectiveRow {
    /// The environment variable.
    pub name: &'static str,
    /// The value, secrets masked; none when there is none.
    pub value: Option<String>,
    /// Where it came from.
    pub from: String,
    /// The flag.
    pub flag: String,
    /// The key in the file.
    pub file_key: String,
}

impl Effective {
    /// Reads and checks the sources.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value, key or file that cannot be used.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let file = read_file(sources)?;
        let mut values = BTreeMap::new();
        for row in TABLE {
            if let Some((path, texts)) = &file
                && let Some(text) = texts.get(&row.key)
            {
                let origin = Origin::File(path.clone());
                values.insert(row.key, (checked(row, text, &origin)?, origin));
            }
            if let Some(raw) = sources.environment.get(row.name) {
                let Some(text) = raw.to_str() else {
                    return Err(ConfigError::new(row, None, &Origin::Environment, "is not UTF-8"));
                };
                values.insert(row.key, (checked(row, text, &Origin::Environment)?, Origin::Environment));
            }
            if let Some(text) = sources.flags.get(&row.key) {
                values.insert(row.key, (checked(row, text, &Origin::Flag)?, Origin::Flag));
            }
        }
        for row in TABLE {
            if values.contains_key(&row.key) {
                continue;
            }
            let text = match row.fallback {
                Fallback::Is(text) => text.to_owned(),
                Fallback::HostName => host_name(),
                Fallback::Derived(_) | Fallback::Unset => continue,
            };
            values.insert(row.key, (checked(row, &text, &Origin::Default)?, Origin::Default));
        }
        let mut this = Self { values, unknown_variables: unknown_variables(&sources.environment) };
        this.derive();
        Ok(this)
    }

    /// Fills in what follows from other settings.
    fn derive(&mut self) {
        let tenth = self.duration(Key::LeaseDuration).unwrap_or_default() / 10;
        let tenth = Duration::from_millis(u64::try_from(tenth.as_millis()).unwrap_or(u64::MAX));
        self.values.entry(Key::SafetyMargin).or_insert((Value::Duration(tenth), Origin::Default));
        let timeout = tenth.min(Duration::from_secs(5));
        self.values.entry(Key::StoreTimeout).or_insert((Value::Duration(timeout), Origin::Default));
        let permits = (self.count(Key::Concurrency).unwrap_or(1) / 8).max(1);
        self.values.entry(Key::RecoveryPermits).or_insert((Value::Count(permits), Origin::Default));
    }

    /// Replaces a value, as a flag would.
    ///
    /// # Errors
    /// [`ConfigError`] when it is not allowed.
    pub fn set(&mut self, key: Key, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let value = checked(setting(key), text, &origin)?;
        self.values.insert(key, (value, origin));
        Ok(())
    }

    /// True when somebody said something about the setting.
    #[must_use]
    pub fn is_given(&self, key: Key) -> bool {
        self.values.get(&key).is_some_and(|(_, origin)| *origin != Origin::Default)
    }

    /// Where a setting's value came from.
    #[must_use]
    pub fn origin(&self, key: Key) -> Origin {
        self.values.get(&key).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    pub(super) fn duration(&self, key: Key) -> Option<Duration> {
        match self.values.get(&key) {
            Some((Value::Duration(d), _)) => Some(*d),
            _ => None,
        }
    }

    pub(super) fn count(&self, key: Key) -> Option<u32> {
        match self.values.get(&key) {
            Some((Value::Count(n), _)) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn text(&self, key: Key) -> Option<&str> {
        match self.values.get(&key) {
            Some((Value::Text(text), _)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn list(&self, key: Key) -> Vec<String> {
        match self.values.get(&key) {
            Some((Value::List(items), _)) => items.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn path(&self, key: Key) -> Option<PathBuf> {
        match self.values.get(&key) {
            Some((Value::File(path), _)) => Some(path.clone()),
            _ => None,
        }
    }

    /// All settings as they are in force, in the order of the table, secrets masked.
    #[must_use]
    pub fn rows(&self) -> Vec<EffectiveRow> {
        TABLE
            .iter()
            .map(|row| EffectiveRow {
                name: row.name,
                value: self.values.get(&row.key).map(|(value, _)| show(row, value)),
                from: self.origin(row.key).to_string(),
                flag: format!("--{}", row.flag),
                file_key: row.file_key(),
            })
            .collect()
    }
}

fn show(row: &Setting, value: &Value) -> String {
    match value {
        Value::Duration(d) => value::show(*d),
        Value::Count(n) => n.to_string(),
        Value::Text(url) if row.kind == Kind::DatabaseUrl => database_url::masked(url),
        Value::Text(text) => text.clone(),
        Value::List(items) => items.join(","),
        Value::File(path) => path.display().to_string(),
    }
}

fn checked(row: &Setting, text: &str, origin: &Origin) -> Result<Value, ConfigError> {
    value::parse(row, text).map_err(|reason| ConfigError::new(row, Some(text), origin, reason))
}

/// The file's texts by key; `None` when no file is named.
#[expect(clippy::type_complexity, reason = "used once, right above")]
fn read_file(sources: &Sources) -> Result<Option<(PathBuf, BTreeMap<Key, String>)>, ConfigError> {
    let (path, by) = match (&sources.file, sources.environment.get(FILE_VARIABLE)) {
        (Some(path), _) => (path.clone(), "--config"),
        (None, Some(path)) if !path.is_empty() => (PathBuf::from(path), FILE_VARIABLE),
        (None, _) => return Ok(None),
    };
    let text = std::fs::read_to_string(&path).map_err(|e| {
        ConfigError::of_file(by, &path, format!("cannot be read ({e}); name a readable TOML file"))
    })?;
    let table: toml::Table = toml::from_str(&text).map_err(|e| ConfigError::of_toml(&path, &text, &e))?;
    let mut texts = BTreeMap::new();
    for (key, value) in table {
        let Some(row) = TABLE.iter().find(|row| row.file_key() == key) else {
            return Err(ConfigError::unknown_key(&path, &key));
        };
        let text = file_text(&value).ok_or_else(|| {
            let reason = format!("is a {} there", value.type_str());
            ConfigError::new(row, None, &Origin::File(path.clone()), reason)
        })?;
        texts.insert(row.key, text);
    }
    Ok(Some((path, texts)))
}

/// The text that a flag would hold: strings, whole numbers, true, false and lists of strings have one.
fn file_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(n) => Some(n.to_string()),
        toml::Value::Boolean(yes) => Some(yes.to_string()),
        toml::Value::Array(items) => {
            items.iter().map(toml::Value::as_str).collect::<Option<Vec<_>>>().map(|items| items.join(","))
        }
        _ => None,
    }
}

/// Misspelt settings in the environment: only prefixes that are surely ours.
fn unknown_variables(environment: &HashMap<String, OsString>) -> Vec<String> {
    let mut names: Vec<String> = environment
        .keys()
        .filter(|name| {
            ["EXECUTION_WORKER_", "EXECUTION_ALLOCATION_"].iter().any(|ours| name.starts_with(ours))
                && TABLE.iter().all(|row| row.name != *name)
        })
        .cloned()
        .collect();
    names.sort();
    names
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().trim().to_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// The nearest known file key, for a misspelt one.
pub(super) fn nearest_key(wrong: &str) -> Option<String> {
    let (distance, key) =
        TABLE.iter().map(|row| (edit_distance(wrong, &row.file_key()), row.file_key())).min()?;
    (distance <= key.len() / 3).then_some(key)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// A path as it is shown in errors.
pub(super) fn show_path(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}
