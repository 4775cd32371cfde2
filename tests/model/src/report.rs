//! The report: a line for each property of each scope, a line and a counter-example for each mutant.

use std::fmt::Write as _;

use crate::{
    explore::{Exploration, Steps},
    mutant::Mutant,
    properties::RULES,
    protocol::Protocol,
    trace,
};

/// The figures of an exploration.
#[must_use]
pub fn figures(e: &Exploration) -> String {
    format!(
        "{} states, {} steps, depth {}, {:.1} s ({:.1} s of processor time), peak {} MiB",
        thousands(e.states),
        thousands(e.steps),
        e.depth,
        e.time.as_secs_f64(),
        e.cpu.as_secs_f64(),
        e.peak_mib
    )
}

/// What an exploration of the protocol as specified showed.
#[must_use]
pub fn proof(e: &Exploration) -> String {
    let whole = if e.broken.is_empty() { "complete, " } else { "" };
    let mut text = format!("scope {}: {whole}{}\n", e.scope.name, figures(e));
    for rule in &RULES {
        let verdict = if e.counter_example(rule.name).is_some() {
            "BROKEN"
        } else if e.broken.is_empty() {
            "holds"
        } else {
            "open: the exploration stopped at what is broken"
        };
        let _ = writeln!(text, "  {:<12} {verdict}: {}", rule.name, rule.says);
        if let Some(steps) = e.counter_example(rule.name) {
            text.push_str(&example(e, rule.name, steps));
        }
    }
    let _ = writeln!(text, "  situations met: {}", e.met.join("; "));
    for missed in &e.missed {
        let _ = writeln!(text, "  never met: {missed}");
    }
    text
}

/// Whether and how a mutant was caught.
#[must_use]
pub fn verdict(e: &Exploration, mutant: Mutant) -> String {
    let rule = mutant.breaks();
    match e.counter_example(rule) {
        Some(steps) => format!(
            "mutant {mutant:?} ({}): caught by {rule} in {} steps, after {} states of scope {}, {:.1} s\n{}",
            mutant.defect(),
            steps.len() - 1,
            thousands(e.states),
            e.scope.name,
            e.time.as_secs_f64(),
            example(e, rule, steps)
        ),
        None => format!("mutant {mutant:?} ({}): NOT CAUGHT, {}\n", mutant.defect(), figures(e)),
    }
}

/// A counter-example, and what it leads to where the last state alone does not show what is wrong.
fn example(e: &Exploration, rule: &str, steps: &Steps) -> String {
    let mut text = trace::print(steps);
    if let ("L10 progress", Some((last, _))) = (rule, steps.last()) {
        let end = Protocol { scope: e.scope, mutant: e.mutant }.calm_end(last);
        text.push_str("   …  and from here, without a further fault, it comes to this and no further:\n");
        for line in trace::world(&end, None) {
            let _ = writeln!(text, "        {line}");
        }
    }
    text
}

/// A number with a space between thousands.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}
