//! A recipe with everything that it includes, as one text: what a submission pins. The client resolves `include`; the
//! server takes only bundles, and compiles nothing that is not in one.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Component, Path},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    canonical::{canonical, hex},
    grammar,
    limits::{LANGUAGE_VERSION, MAX_FILES, MAX_RECIPE_BYTES},
    mistake::{Mistakes, Place},
    yaml::{self, Yaml},
};

/// A pinned recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// The version of the language: a binary that does not know it leaves the job alone.
    pub language: u32,
    /// The file that is the recipe; the others are what it includes.
    pub root: String,
    /// Every file by its path below the root recipe's folder.
    pub files: BTreeMap<String, String>,
}

/// A text that is no bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no bundle of a recipe: {0}")]
pub struct InvalidBundle(String);

impl Bundle {
    /// A recipe of one file, or one whose files are known already.
    #[must_use]
    pub fn new(root: &str, files: BTreeMap<String, String>) -> Self {
        Self { language: LANGUAGE_VERSION, root: root.to_owned(), files }
    }

    /// Reads a recipe and everything that it includes. Nothing outside the recipe's folder is read, whatever an
    /// `include` says and wherever a symbolic link leads.
    ///
    /// # Errors
    /// [`Mistakes`]: what cannot be read, and where it was asked for.
    pub fn read(path: &Path) -> Result<Self, Mistakes> {
        let nowhere = Place::default();
        let shown = path.display().to_string();
        let Some(root) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Mistakes::one(&shown, nowhere, "is not the path of a file"));
        };
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        let text = read_file(path).map_err(|reason| Mistakes::one(root, nowhere, reason))?;
        let mut files = BTreeMap::from([(root.to_owned(), text)]);
        let mut mistakes = Mistakes::default();
        let mut unread = vec![root.to_owned()];
        while let Some(file) = unread.pop() {
            // A file with mistakes of its own is reported when the bundle is compiled.
            let Ok(yaml) = yaml::read(&file, &files[&file]) else { continue };
            for (include, place) in includes(&yaml) {
                let found = resolve(&file, include).and_then(|target| {
                    if files.contains_key(&target) {
                        return Ok(None);
                    }
                    if files.len() == MAX_FILES {
                        return Err(format!("there are more than {MAX_FILES} files"));
                    }
                    let text = read_below(folder, &target)?;
                    if files.values().map(String::len).sum::<usize>() + text.len() > MAX_RECIPE_BYTES {
                        return Err(format!(
                            "all files together have more than {MAX_RECIPE_BYTES} bytes (256 KiB)"
                        ));
                    }
                    Ok(Some((target, text)))
                });
                match found {
                    Ok(None) => {}
                    Ok(Some((target, text))) => {
                        files.insert(target.clone(), text);
                        unread.push(target);
                    }
                    Err(reason) => {
                        mistakes.add(&file, place, format!("cannot include {include:?}: {reason}"))
                    }
                }
            }
        }
        mistakes.none_or()?;
        Ok(Self::new(root, files))
    }

    /// Reads a bundle back.
    ///
    /// # Errors
    /// [`InvalidBundle`] when the text is none, or one of another version.
    pub fn parse(text: &str) -> Result<Self, InvalidBundle> {
        let bundle: Self = serde_json::from_str(text).map_err(|e| InvalidBundle(e.to_string()))?;
        if bundle.language != LANGUAGE_VERSION {
            return Err(InvalidBundle(format!(
                "it is written in version {} of the language; this binary knows {LANGUAGE_VERSION}",
                bundle.language
            )));
        }
        Ok(bundle)
    }

    /// The bundle as JSON text, in canonical form.
    #[must_use]
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string(self).expect("strings and numbers have a JSON form");
        canonical(&text).expect("what was just written")
    }

    /// What tells one content from another: the SHA-256 of [`Bundle::to_json`] in lower-case hex.
    #[must_use]
    pub fn digest(&self) -> String {
        hex(&Sha256::digest(self.to_json()))
    }
}

/// What a file includes.
pub(super) fn includes(yaml: &Yaml) -> Vec<(&str, Place)> {
    let mut found = Vec::new();
    grammar::paths(yaml, &grammar::RECIPE, &mut found);
    found
}

/// The path, below the root recipe's folder, of what `file` includes.
pub(super) fn resolve(file: &str, include: &str) -> Result<String, String> {
    if include.is_empty() || include.contains(['\\', '\0']) || include.chars().any(char::is_control) {
        return Err("write the path of a file with `/` between its parts".to_owned());
    }
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for component in Path::new(include).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str().unwrap_or_default()),
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop().ok_or("it lies outside the root recipe's folder")?;
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err("the path must be relative to the including file".to_owned());
            }
        }
    }
    if parts.is_empty() || include.ends_with('/') {
        return Err("it is not the path of a file".to_owned());
    }
    Ok(parts.join("/"))
}

/// Reads a file below a folder, following no link on the way.
fn read_below(folder: &Path, target: &str) -> Result<String, String> {
    let mut path = folder.to_path_buf();
    for part in target.split('/') {
        path.push(part);
        let found = fs::symlink_metadata(&path).map_err(|e| told(&e))?;
        if found.file_type().is_symlink() {
            return Err(format!("{part} is a symbolic link; those are not followed"));
        }
    }
    read_file(&path)
}

/// The text of a file that is no longer than a recipe may be.
pub(super) fn read_file(path: &Path) -> Result<String, String> {
    let found = fs::metadata(path).map_err(|e| told(&e))?;
    if !found.is_file() {
        return Err("it is not a file".to_owned());
    }
    if found.len() > MAX_RECIPE_BYTES as u64 {
        return Err(format!("it has more than {MAX_RECIPE_BYTES} bytes (256 KiB)"));
    }
    String::from_utf8(fs::read(path).map_err(|e| told(&e))?).map_err(|_| "it is not UTF-8".to_owned())
}

fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "it may not be read".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_include_is_relative_to_its_file_and_never_leaves_the_folder() {
        for (file, include, target) in [
            ("a.yaml", "b.yaml", "b.yaml"),
            ("a.yaml", "./lib/b.yaml", "lib/b.yaml"),
            ("lib/a.yaml", "b.yaml", "lib/b.yaml"),
            ("lib/a.yaml", "../b.yaml", "b.yaml"),
            ("lib/a.yaml", "x/../../b.yaml", "b.yaml"),
        ] {
            assert_eq!(resolve(file, include), Ok(target.to_owned()), "{file} {include}");
        }
        for (file, include) in [
            ("a.yaml", "../b.yaml"),
            ("lib/a.yaml", "../../b.yaml"),
            ("a.yaml", "x/../../b.yaml"),
            ("a.yaml", "/etc/passwd"),
            ("a.yaml", "lib\\b.yaml"),
            ("a.yaml", ""),
            ("a.yaml", "."),
            ("a.yaml", "lib/.."),
            ("a.yaml", "lib/"),
        ] {
            resolve(file, include).expect_err(include);
        }
    }

    #[test]
    fn a_bundle_is_one_text_and_its_digest_follows_its_content() {
        let files = |text: &str| BTreeMap::from([("a.yaml".to_owned(), text.to_owned())]);
        let bundle = Bundle::new("a.yaml", files("id: a\nop: b\n"));
        assert_eq!(Bundle::parse(&bundle.to_json()), Ok(bundle.clone()));
        assert_eq!(bundle.to_json(), r#"{"files":{"a.yaml":"id: a\nop: b\n"},"language":1,"root":"a.yaml"}"#);
        assert_ne!(bundle.digest(), Bundle::new("a.yaml", files("id: a\nop: c\n")).digest());
        assert_eq!(bundle.digest().len(), 64);
        for bad in [
            "",
            "{}",
            r#"{"language":2,"root":"a","files":{}}"#,
            r#"{"language":1,"root":"a","files":{},"x":1}"#,
        ] {
            Bundle::parse(bad).expect_err(bad);
        }
    }
}
