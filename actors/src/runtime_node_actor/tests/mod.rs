//! Every step, every lost answer and every exit over the scripted engine, the memory store and paused time.

mod actor;
pub(super) mod bed;
mod beginning;
mod ending;
mod output;
mod recovering;
mod recovering_tasks;
mod stopping;
