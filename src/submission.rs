//! Validation of everything that is submitted, before anything is written.
//!
//! A refusal names the field and the rule. `leasehold.submit_job` checks the same rules in SQL as far as SQL
//! can, since any language may call it; a test compares both over one table of bad inputs.

pub mod document;
