//! The checker keeps one state of each class of states that count as the same. That is sound only if all
//! states of a class can do the same.
#![allow(missing_docs, unreachable_pub, reason = "a test binary has no readers but its authors")]

use std::collections::{BTreeSet, HashMap};

use leasehold_model::{
    protocol::Protocol,
    scope::{self, Scope},
    state::State,
};

type Image = Vec<u64>;

fn image(s: &State) -> Image {
    s.least_image().to_vec()
}

fn successors(protocol: &Protocol, s: &State) -> Vec<State> {
    let mut actions = Vec::new();
    protocol.actions(s, &mut actions);
    actions.into_iter().map(|action| protocol.step(s, action)).filter(|next| next != s).collect()
}

/// Walks over the first `enough` states, without merging those that count as the same unless they are equal.
/// Returns how many pairs of unequal states with the same image were compared.
fn compare(scope: Scope, enough: usize) -> usize {
    let protocol = Protocol { scope, mutant: None };
    let mut known: HashMap<Image, (State, BTreeSet<Image>)> = HashMap::new();
    let mut seen: Vec<State> = vec![State::first(&scope)];
    let mut at = 0;
    let mut compared = 0;
    while at < seen.len() && seen.len() < enough {
        let s = seen[at];
        at += 1;
        let next = successors(&protocol, &s);
        let images: BTreeSet<_> = next.iter().map(image).collect();
        match known.get(&image(&s)) {
            Some((twin, _)) if *twin == s => continue,
            Some((twin, expected)) => {
                assert_eq!(
                    &images, expected,
                    "these count as the same and cannot do the same:\n{twin:?}\n{s:?}"
                );
                compared += 1;
            }
            None => {
                known.insert(image(&s), (s, images));
            }
        }
        seen.extend(next);
    }
    compared
}

#[test]
fn states_that_count_as_the_same_can_do_the_same() {
    for scope in [scope::ONE_JOB, scope::TWO_JOBS, scope::BATCH] {
        let compared = compare(scope, 100_000);
        assert!(compared > 1_000, "{}: only {compared} pairs met", scope.name);
    }
}
