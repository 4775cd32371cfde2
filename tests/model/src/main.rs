//! Explores the model and reports. Exit code 0 only if every property holds and every mutant is caught.

use std::process::ExitCode;

use leasehold_model::{
    explore::{explore, give_way},
    mutant::Mutant,
    report,
    scope::{self, Scope},
};

const USAGE: &str = "\
usage: leasehold-model [quick | full | scope NAME | mutant NAME] [--threads N]

  quick         the quick scopes, then every mutant with its counter-example (default)
  full          the same with the full scopes
  scope NAME    one scope
  mutant NAME   one mutant
  --threads N   explore with N threads (default: the processors there are)";

enum Task {
    Prove(Vec<Scope>, Vec<Mutant>),
    Usage(String),
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let threads = match take_threads(&mut words) {
        Ok(threads) => threads,
        Err(problem) => return usage(&problem),
    };
    give_way();
    match task(&words) {
        Task::Prove(scopes, mutants) if run(&scopes, &mutants, threads) => ExitCode::SUCCESS,
        Task::Prove(..) => ExitCode::FAILURE,
        Task::Usage(problem) => usage(&problem),
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}\n{USAGE}");
    ExitCode::from(2)
}

fn take_threads(words: &mut Vec<String>) -> Result<usize, String> {
    let Some(at) = words.iter().position(|word| word == "--threads") else {
        return Ok(std::thread::available_parallelism().map_or(1, usize::from));
    };
    let number = words.get(at + 1).and_then(|number| number.parse().ok()).filter(|number| *number > 0);
    words.drain(at..(at + 2).min(words.len()));
    number.ok_or_else(|| "--threads wants a number above 0".to_owned())
}

fn task(words: &[String]) -> Task {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] | ["quick"] => Task::Prove(scope::QUICK.to_vec(), Mutant::ALL.to_vec()),
        ["full"] => Task::Prove([scope::FULL, scope::QUICK].concat(), Mutant::ALL.to_vec()),
        ["scope", name] => match scope::QUICK.iter().chain(&scope::FULL).find(|scope| scope.name == name) {
            Some(scope) => Task::Prove(vec![*scope], Vec::new()),
            None => {
                let names: Vec<_> = scope::QUICK.iter().chain(&scope::FULL).map(|scope| scope.name).collect();
                Task::Usage(format!("there is no scope {name}; there are {}", names.join(", ")))
            }
        },
        ["mutant", name] => match Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name) {
            Some(mutant) => Task::Prove(Vec::new(), vec![mutant]),
            None => Task::Usage(format!("there is no mutant {name}; there are {:?}", Mutant::ALL)),
        },
        _ => Task::Usage(format!("not understood: {}", words.join(" "))),
    }
}

fn run(scopes: &[Scope], mutants: &[Mutant], threads: usize) -> bool {
    let mut good = true;
    for scope in scopes {
        let found = explore(*scope, None, threads);
        println!("{}", report::proof(&found));
        good &= found.holds();
    }
    for mutant in mutants {
        // With one thread, the first way that is found is a shortest one.
        let found = explore(mutant.scope(), Some(*mutant), 1);
        println!("{}", report::verdict(&found, *mutant));
        good &= found.counter_example(mutant.breaks()).is_some();
    }
    println!(
        "{}",
        if good { "all hold, all caught" } else { "NOT GOOD: see BROKEN, never met or NOT CAUGHT above" }
    );
    good
}
