//! Chaos: a fleet of real processes under every fault at once, and a checker that reads what happened.

#[expect(dead_code, reason = "the report prints the rest")]
mod checker;
mod forged;
#[expect(dead_code, reason = "a run of the fleet fills it whole")]
mod history;
