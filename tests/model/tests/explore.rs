//! The quick scopes hold, and every mutant is caught. What an exploration counts is printed; see it with
//! `--no-capture`, or run `cargo run -p leasehold-model`.
#![allow(missing_docs, unreachable_pub, reason = "a test binary has no readers but its authors")]

use leasehold_model::{
    explore::{explore, give_way},
    mutant::Mutant,
    properties::RULES,
    report,
    scope::{self, Scope},
    trace,
};

fn must_hold(scope: Scope) {
    give_way();
    let found = explore(scope, None, 1);
    println!("{}", report::proof(&found));
    assert!(found.holds(), "{}", report::proof(&found));
}

#[test]
fn one_job_with_every_kind_of_fault_keeps_every_invariant() {
    must_hold(scope::ONE_JOB_QUICK);
}

#[test]
fn one_job_keeps_every_invariant_also_where_no_state_is_tidied() {
    must_hold(scope::PLAIN);
}

#[test]
fn two_jobs_keep_every_invariant() {
    must_hold(scope::TWO_JOBS_QUICK);
}

#[test]
fn batch_claims_keep_every_invariant() {
    must_hold(scope::BATCH);
}

#[test]
fn every_mutant_is_caught_by_the_rule_that_it_breaks() {
    give_way();
    for mutant in Mutant::ALL {
        let found = explore(mutant.scope(), Some(mutant), 1);
        println!("{}", report::verdict(&found, mutant));
        assert!(found.counter_example(mutant.breaks()).is_some(), "{}", report::verdict(&found, mutant));
    }
}

#[test]
fn every_rule_is_broken_by_some_mutant() {
    for rule in &RULES {
        assert!(
            Mutant::ALL.iter().any(|mutant| mutant.breaks() == rule.name),
            "nothing breaks {}",
            rule.name
        );
    }
}

#[test]
fn a_counter_example_tells_its_steps_in_words_and_is_as_short_as_can_be() {
    let found = explore(Mutant::ClockBeforeTheLock.scope(), Some(Mutant::ClockBeforeTheLock), 1);
    let text = trace::print(found.counter_example("L3").expect("the mutant is caught"));
    let steps: Vec<_> =
        text.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())).collect();
    assert_eq!(steps.len(), 9, "{text}");
    assert!(steps[0].contains("dispatch: A becomes QUEUED"), "{text}");
    assert!(steps[8].contains("the renew A of W1 holds the row of A, reads the clock and writes"), "{text}");
}
