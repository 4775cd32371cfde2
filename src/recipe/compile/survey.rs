//! The first walk over a bundle: every file is read and checked against the grammar, then cycles of `include`, nesting
//! and the number of nodes are looked at. What passes can be walked without care.

use std::collections::{BTreeMap, BTreeSet};

use crate::recipe::{
    bundle::{Bundle, includes, resolve},
    grammar,
    limits::{LANGUAGE_VERSION, MAX_NESTING, MAX_NODES, MAX_RECIPE_BYTES},
    mistake::{Mistakes, Place},
    yaml::{self, Yaml},
};

/// Every file by its name.
pub(super) type Files = BTreeMap<String, Yaml>;

/// Reads a bundle.
pub(super) fn survey(bundle: &Bundle) -> Result<Files, Mistakes> {
    let files = read(bundle)?;
    let mut survey = Survey { files: &files, mistakes: Mistakes::default(), nodes: 0, chain: Vec::new() };
    survey.file(&bundle.root, 1);
    survey.mistakes.none_or()?;
    Ok(files)
}

/// Every file as a tree that fits the grammar and includes only what is there.
fn read(bundle: &Bundle) -> Result<Files, Mistakes> {
    let mut mistakes = Mistakes::default();
    let mut bytes: usize = bundle.files.values().map(String::len).sum();
    if bytes <= MAX_RECIPE_BYTES {
        // What a submission pins, in which a line break or a quote takes two bytes: one limit for the whole way.
        bytes = bundle.to_json().len();
    }
    if bytes > MAX_RECIPE_BYTES {
        let reason = format!(
            "the recipe has {bytes} bytes in all, as JSON text; at most {MAX_RECIPE_BYTES} (256 KiB) are allowed"
        );
        return Err(Mistakes::one(&bundle.root, Place::default(), reason));
    }
    if bundle.language != LANGUAGE_VERSION {
        let reason = format!("version {} of the language is not known here", bundle.language);
        return Err(Mistakes::one(&bundle.root, Place::default(), reason));
    }
    if !bundle.files.contains_key(&bundle.root) {
        return Err(Mistakes::one(&bundle.root, Place::default(), "is not among the files of the bundle"));
    }
    let mut files = Files::new();
    let mut included = BTreeSet::from([bundle.root.clone()]);
    for (file, text) in &bundle.files {
        match yaml::read(file, text) {
            Ok(yaml) => {
                grammar::check(&yaml, &grammar::RECIPE, &mut |place, message| {
                    mistakes.add(file, place, message)
                });
                for (include, place) in includes(&yaml) {
                    match resolve(file, include) {
                        Ok(target) if bundle.files.contains_key(&target) => {
                            included.insert(target);
                        }
                        Ok(target) => mistakes.add(
                            file,
                            place,
                            format!("{target} is not among the files of the bundle"),
                        ),
                        Err(reason) => {
                            mistakes.add(file, place, format!("cannot include {include:?}: {reason}"))
                        }
                    }
                }
                files.insert(file.clone(), yaml);
            }
            Err(found) => mistakes.mistakes.extend(found.mistakes),
        }
    }
    for file in bundle.files.keys().filter(|file| !included.contains(*file)) {
        mistakes.add(file, Place::default(), "is in the bundle, but nothing includes it");
    }
    mistakes.none_or()?;
    Ok(files)
}

/// The nodes below a node, those of included files and of `catch` among them, and the files that they stand in.
pub(super) fn children(yaml: &Yaml) -> impl Iterator<Item = &Yaml> {
    let of = |key: &str| yaml.get(key).map_or(&[][..], Yaml::elements);
    let states = yaml.get("state").and_then(|machine| machine.get("states")).map_or(&[][..], Yaml::elements);
    of("sequence").iter().chain(of("parallel")).chain(states).chain(yaml.get("catch"))
}

pub(super) fn included<'a>(yaml: &'a Yaml, file: &str) -> Option<(String, &'a Yaml)> {
    let value = yaml.get("include")?;
    Some((resolve(file, value.text()?).ok()?, value))
}

struct Survey<'a> {
    files: &'a Files,
    mistakes: Mistakes,
    nodes: usize,
    /// The files that the walk is in.
    chain: Vec<String>,
}

impl Survey<'_> {
    fn file(&mut self, file: &str, depth: usize) {
        self.chain.push(file.to_owned());
        let files = self.files;
        self.node(&files[file], file, depth);
        self.chain.pop();
    }

    /// Answers whether to go on: a walk over the limits ends at once.
    fn node(&mut self, yaml: &Yaml, file: &str, depth: usize) -> bool {
        self.nodes += 1;
        if depth > MAX_NESTING {
            self.mistakes.add(file, yaml.place, format!("nodes are nested more than {MAX_NESTING} deep"));
            return false;
        }
        if self.nodes > MAX_NODES {
            let reason = format!("there are more than {MAX_NODES} nodes, those of included files counted");
            self.mistakes.add(file, yaml.place, reason);
            return false;
        }
        if let Some((target, value)) = included(yaml, file) {
            if self.chain.contains(&target) {
                let way = format!("{} -> {target}", self.chain.join(" -> "));
                self.mistakes.add(file, value.place, format!("a recipe cannot include itself: {way}"));
                return false;
            }
            self.file(&target, depth + 1);
            if !self.mistakes.is_empty() {
                return false;
            }
        }
        children(yaml).all(|child| self.node(child, file, depth + 1))
    }
}
