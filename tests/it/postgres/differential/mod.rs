//! The differential test: random operations on the memory store and on PostgreSQL, step by step. After each step
//! the answers and every row of every job must be the same, but for what each store makes up itself (tokens, ids,
//! instants). A seed that fails is printed with its steps; `LEASEHOLD_DIFFERENTIAL_SEEDS=7..8` runs it alone, and
//! `0..1000` looks further than CI does.

mod look;
mod pair;
mod recovery;
mod step;

use std::ops::Range;

use pair::Pair;

use super::harness::PgHarness;

/// How many steps a seed makes.
const STEPS: usize = 150;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_agree_on_the_first_seeds() {
    run(seeds(0..12)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_agree_on_more_seeds() {
    run(seeds(12..24)).await;
}

fn seeds(usual: Range<u64>) -> Range<u64> {
    match std::env::var("LEASEHOLD_DIFFERENTIAL_SEEDS") {
        Ok(asked) => {
            let (from, to) = asked.split_once("..").expect("a range such as 0..100");
            from.parse().expect("a number")..to.parse().expect("a number")
        }
        Err(_) => usual,
    }
}

/// One database for all of them, a namespace for each.
async fn run(seeds: Range<u64>) {
    let harness = PgHarness::create().await;
    for seed in seeds {
        let mut pair = Pair::new(&harness, seed).await;
        for _ in 0..STEPS {
            pair.step().await;
        }
        pair.conclude().await;
    }
}
