//! Where in its files a recipe says what an occurrence does.

use crate::recipe::{
    bundle::{self, Bundle},
    mistake::Place,
    yaml::{self, Yaml},
};

/// The file and the place of the node that a path names; as near as it can be told.
pub(super) fn locate(bundle: &Bundle, path: &str) -> (String, Place) {
    let mut file = bundle.root.clone();
    let Some(mut node) = root(bundle, &file) else { return (file, Place::default()) };
    for part in path.split('/') {
        let (rest, _) = part.rsplit_once('!').unwrap_or((part, ""));
        let (id, _) = rest.rsplit_once('#').unwrap_or((rest, ""));
        match step(bundle, &file, &node, id) {
            Some((in_file, next)) => (file, node) = (in_file, next),
            // A root's own name, or a timer's.
            None => continue,
        }
    }
    (file, node.place)
}

fn root(bundle: &Bundle, file: &str) -> Option<Yaml> {
    yaml::read(file, bundle.files.get(file)?).ok()
}

fn step(bundle: &Bundle, file: &str, node: &Yaml, id: &str) -> Option<(String, Yaml)> {
    let states = node.get("state").and_then(|machine| machine.get("states"));
    let lists = [node.get("sequence"), node.get("parallel"), states];
    let mut children = lists.into_iter().flatten().flat_map(Yaml::elements);
    if let Some(child) = children.find(|child| child.get("id").and_then(Yaml::text) == Some(id)) {
        return Some((file.to_owned(), child.clone()));
    }
    if let Some(include) = node.get("include").and_then(Yaml::text) {
        let target = bundle::resolve(file, include).ok()?;
        if let Some(found) = step(bundle, &target, &root(bundle, &target)?, id) {
            return Some(found);
        }
    }
    let catch = node.get("catch")?;
    let named = catch.get("id").and_then(Yaml::text).unwrap_or("catch");
    (named == id).then(|| (file.to_owned(), catch.clone()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_path_is_found_through_states_includes_and_catches() {
        let root = "id: a\nsequence:\n  - id: work\n    state:\n      initial: poll\n      states:\n        - id: poll\n          op: x\n  - id: inc\n    include: lib/b.yaml\n";
        let inner = "id: b\nsequence:\n  - id: in\n    op: x\n    catch:\n      op: y\n";
        let files = [("a.yaml", root), ("lib/b.yaml", inner)];
        let files: BTreeMap<_, _> =
            files.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let bundle = Bundle::new("a.yaml", files);
        let at = |path: &str| {
            let (file, place) = locate(&bundle, path);
            format!("{file}:{}:{}", place.line, place.column)
        };
        assert_eq!(at("work/poll#3!2"), "a.yaml:7:11");
        assert_eq!(at("inc/in"), "lib/b.yaml:3:5");
        assert_eq!(at("inc/in/catch"), "lib/b.yaml:6:7");
        assert_eq!(at("."), "a.yaml:1:1");
    }
}
