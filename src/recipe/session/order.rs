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
