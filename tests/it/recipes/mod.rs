//! Recipes: the invariants E1 to E10 of execution-aware recipes, on both runtimes, and the larger proofs of them. The
//! table in `docs/faults.md` says which test holds which.

mod bed;
mod crashing;
mod entries;
mod handing_off;
mod hints;
mod histories;
mod linear;
mod needs;
mod outputs;
mod payloads;
mod refused;
mod replays;

pub use bed::spec_of;

/// Every scenario that is played on both stores: `memory` with paused time, `postgres` in a database of its own.
macro_rules! scenarios {
    ($($module:ident: [$($case:ident),* $(,)?];)*) => {
        mod memory {
            $(mod $module {
                $(#[tokio::test(start_paused = true)]
                async fn $case() {
                    Box::pin(crate::recipes::$module::$case(crate::recipes::bed::Bed::memory())).await;
                })*
            })*
        }
        mod postgres {
            $(mod $module {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    Box::pin(crate::recipes::$module::$case(crate::recipes::bed::Bed::postgres().await)).await;
                })*
            })*
        }
    };
}

scenarios! {
    crashing: [
        a_worker_that_dies_at_any_call_costs_no_result_and_no_recorded_success_runs_again,
        a_call_whose_request_or_answer_is_lost_is_made_once,
    ];
    handing_off: [
        a_job_goes_from_amd64_to_arm64_and_back_over_nested_scopes_each_task_once,
        a_task_never_runs_where_it_does_not_fit,
        a_replay_asks_for_no_environment_that_finished_work_once_needed,
        a_publication_keeps_what_another_client_writes_meanwhile,
        a_handoff_without_an_answer_runs_nothing_and_reports_none,
        an_answer_to_the_repeat_of_a_handoff_acknowledges_it,
        needs_come_from_the_recipe_its_input_its_overrides_and_its_log_alone,
    ];
    hints: [
        an_exact_hint_keeps_the_job_from_who_declined_it_and_from_nobody_who_fits,
        a_stale_hint_orders_and_keeps_a_runnable_job_waiting_for_five_seconds_at_most,
    ];
    linear: [
        a_replay_takes_as_many_steps_and_reads_as_much_for_each_record_of_a_long_log_as_of_a_short_one,
    ];
    needs: [
        each_task_of_nested_scopes_runs_where_the_table_says_and_replays_ask_for_nothing,
        the_same_insufficient_attempts_raise_no_revision,
        an_allocation_that_is_larger_than_needed_never_yields,
        two_workers_with_half_of_the_needs_each_do_not_bounce_a_job_for_ever,
    ];
    outputs: [
        a_result_or_an_error_over_the_limit_is_a_short_failure_and_no_endless_retry,
        a_result_that_cannot_be_stored_is_the_tasks_own_failure,
        a_poison_recipe_ends_after_its_attempts_and_the_others_go_on,
    ];
    refused: [
        a_recipe_that_no_client_would_submit_fails_its_job_and_the_worker_goes_on,
    ];
    replays: [
        steps_that_are_alike_in_all_but_their_place_have_results_of_their_own,
        the_order_in_which_branches_end_is_no_part_of_what_they_are,
        warm_cold_and_restarted_workers_go_the_same_way,
    ];
    payloads: [
        a_client_that_writes_its_payload_beside_handoffs_loses_no_byte_and_holds_up_no_handoff,
    ];
}
