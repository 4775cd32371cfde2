//! The order of the document, for paths: which occurrence comes before which.

use crate::recipe::compiled::{Body, Node, Recipe};

/// The place of one part of a path: which node among its siblings, which visit, which attempt.
type Step = (usize, u32, u32);

/// The place of a path in the order of the document; comparable with that of any other path of the same recipe.
/// What no node of the recipe can have recorded comes last.
pub(super) fn place(recipe: &Recipe, path: &str) -> Vec<Step> {
    let mut node = Some(&recipe.root);
    let mut place = Vec::new();
    for part in path.split('/') {
        let (rest, attempt) = number(part, '!');
        let (id, visit) = number(rest, '#');
        if id == "." {
            // A root's own: it stands where its recipe stands.
            place.push((0, visit, attempt));
            continue;
        }
        let found = match (id, node) {
            // Timers stand before what they belong to ends, and after its beginning.
            ("@timeout" | "@backoff", _) => Some((0, None)),
            (id, Some(node)) => match (&node.catch, child(node, id)) {
                (_, Some((n, node))) => Some((n + 1, Some(node))),
                (Some(catch), None) if catch.id == id => Some((usize::MAX - 1, Some(&**catch))),
                _ => None,
            },
            (_, None) => None,
        };
        let (n, next) = found.unwrap_or((usize::MAX, None));
        node = next;
        place.push((n, visit, attempt));
    }
    place
}

/// The node that a path leads to, whatever its visits and attempts.
pub(super) fn node<'a>(recipe: &'a Recipe, path: &str) -> Option<&'a Node> {
    path.split('/').try_fold(&recipe.root, step)
}

fn step<'a>(node: &'a Node, part: &str) -> Option<&'a Node> {
    let id = id(part);
    if id == "." {
        return Some(node);
    }
    child(node, id).map(|(_, node)| node).or_else(|| node.catch.as_deref().filter(|catch| catch.id == id))
}

/// A part without its visit and attempt.
pub(super) fn id(part: &str) -> &str {
    number(number(part, '!').0, '#').0
}

/// Whether what stands at a path is unfinished when a job is reopened from another one: everything inside it, and all
/// that comes after it in the order of the document. Visits of states have no such order: theirs is that in which they
/// began, which `began` tells of the beginning of a path.
pub(super) fn unfinished(
    recipe: &Recipe,
    from: &str,
    path: &str,
    began: impl Fn(&str) -> Option<i64>,
) -> bool {
    let (mut wanted, mut given) = (from.split('/'), path.split('/'));
    let mut node = Some(&recipe.root);
    let mut common = String::new();
    loop {
        let (a, b) = match (wanted.next(), given.next()) {
            // Inside.
            (None, _) => return true,
            // Around.
            (Some(_), None) => return false,
            (Some(a), Some(b)) => (a, b),
        };
        if a == b {
            node = node.and_then(|node| step(node, a));
            common = format!("{common}{a}/");
            continue;
        }
        let visit = |part: &str| began(&format!("{common}{}", number(part, '!').0));
        return match (id(a), id(b)) {
            // The limit of what is around goes on; the wait behind an attempt comes after all that is in it.
            (_, "@timeout") => false,
            (_, "@backoff") | (".", _) => true,
            (_, ".") => false,
            (x, y) if x == y => match (number(a, '!'), number(b, '!')) {
                // What catches a node comes after its attempts.
                ((v, m), (w, n)) if v == w => n == 0 || m != 0 && n > m,
                _ => visit(b) > visit(a),
            },
            (x, y) => match node {
                None => true,
                Some(node) => {
                    let catch = node.catch.as_ref().map(|catch| catch.id.as_str());
                    match (child(node, x), child(node, y)) {
                        (Some((m, _)), Some((n, _))) if m == n => visit(b) > visit(a),
                        (Some((m, _)), Some((n, _))) => n > m,
                        (None, Some(_)) => catch != Some(x),
                        (_, None) => true,
                    }
                }
            },
        };
    }
}

fn number(part: &str, mark: char) -> (&str, u32) {
    match part.rsplit_once(mark) {
        Some((id, n)) => n.parse().map_or((part, 0), |n| (id, n)),
        None => (part, 0),
    }
}

fn child<'a>(node: &'a Node, id: &str) -> Option<(usize, &'a Node)> {
    match &node.body {
        Body::Op { .. } => None,
        Body::Sequence(nodes) | Body::Parallel(nodes) => {
            nodes.iter().enumerate().find(|(_, node)| node.id == id)
        }
        // States have no order but that of their visits: all of them count as one.
        Body::States(machine) => {
            machine.states.iter().find(|state| state.node.id == id).map(|state| (0, &state.node))
        }
        Body::Include { recipe, .. } => child(&recipe.root, id),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::recipe::bundle::Bundle;

    const RECIPE: &str = r"
id: r
timeout: 1h
sequence:
  - id: a
    op: work
    retry: { max_attempts: 3 }
    catch: { id: rescue, op: work }
  - id: work
    timeout: 5m
    retry: { max_attempts: 2 }
    sequence: [{ id: x, op: work }, { id: y, op: work }]
  - id: loop
    state:
      initial: one
      states:
        - { id: one, op: work, transitions: [{ to: two }] }
        - { id: two, op: work, transitions: [{ to: one }] }
  - { id: last, op: work }
";

    #[test]
    fn what_comes_after_a_path_is_unfinished_and_what_is_around_it_is_not() {
        let files = BTreeMap::from([("r.yaml".to_owned(), RECIPE.to_owned())]);
        let recipe = crate::recipe::compile(&Bundle::new("r.yaml", files)).unwrap();
        let log = [
            "./@timeout",
            "a!1",
            "a!1/@backoff",
            "a!2",
            "a/rescue",
            "work!1/@timeout",
            "work!1/x",
            "work!1/y",
            "work!1/@backoff",
            "work!2/@timeout",
            "work!2/x",
            "loop/one#1",
            "loop/two#1",
            "loop/one#2",
            "loop/two#2",
            "last",
        ];
        let began = |prefix: &str| {
            let at = log.iter().position(|path| {
                path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '!']))
            });
            at.map(|at| i64::try_from(at).unwrap())
        };
        let stands = |from: &str| -> Vec<&str> {
            log.into_iter().filter(|path| !unfinished(&recipe, from, path, began)).collect()
        };
        assert!(stands(".").is_empty());
        assert_eq!(stands("a!1"), log[..1]);
        assert_eq!(stands("a!2"), log[..3]);
        assert_eq!(stands("a/rescue"), log[..4]);
        assert_eq!(stands("work!1"), log[..5]);
        assert_eq!(stands("work!1/x"), log[..6]);
        assert_eq!(stands("work!1/y"), log[..7]);
        assert_eq!(stands("work!2/x"), log[..10]);
        assert_eq!(stands("loop"), log[..11]);
        assert_eq!(stands("loop/one#2"), log[..13], "the first visit of `two` came before it");
        assert_eq!(stands("last"), log[..15]);
        assert_eq!(node(&recipe, "loop/two").unwrap().id, "two");
        assert_eq!(node(&recipe, "a/rescue").unwrap().id, "rescue");
        assert!(node(&recipe, "loop/three").is_none());
    }
}
