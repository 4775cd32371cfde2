//! The conformance suite: what every [`crate::ports::LeaseStore`] must do, case by case.
//!
//! A case is an async function over a [`super::StoreHarness`] on a fresh store. It knows no clock: leases
//! expire because the case says so. [`crate::conformance_cases!`] hands the whole list to a macro of the caller, which
//! makes one test of each:
//!
//! ```text
//! macro_rules! on_memory {
//!     ($($module:ident: [$($case:ident),* $(,)?];)*) => { $(mod $module { $(
//!         #[tokio::test]
//!         async fn $case() {
//!             leasehold_actors::testing::conformance::$module::$case(&MemoryStore::new()).await;
//!         }
//!     )* })* };
//! }
//! leasehold_actors::conformance_cases!(on_memory);
//! ```
#![allow(missing_docs, reason = "a case's name is its sentence")]

pub mod attaching;
pub mod authority;
mod bench;
pub mod cancelling;
pub mod claiming;
pub mod containing;
pub mod dispatching;
pub mod ending;
pub mod generations;
pub mod handing;
pub mod hinting;
pub mod losing;
pub mod overlapping;
pub mod parenting;
pub mod placement;
pub mod recording;
pub mod recovering;
pub mod renewal;
pub mod reopening;
pub mod replay;
pub mod retaking;
pub mod schemata;
pub mod waking;

/// Calls a macro with every case of the suite, by module.
#[macro_export]
macro_rules! conformance_cases {
    ($run:ident) => {
        $run! {
            claiming: [
                a_grant_carries_what_was_submitted,
                an_open_claim_takes_the_most_urgent_first,
                an_open_claim_takes_no_more_than_its_limit,
                an_open_claim_takes_only_its_routes_in_its_namespace,
                each_grant_has_its_own_token,
                epochs_strictly_rise,
                concurrent_claims_of_one_job_grant_it_once,
                concurrent_open_claims_share_the_jobs_out,
                a_job_that_does_not_exist_is_not_found,
                a_job_of_another_namespace_is_not_found,
                an_old_dispatch_attempt_is_stale,
                an_expected_generation_that_differs_is_stale,
                a_superseded_job_is_not_granted,
                a_paused_or_terminated_workflow_grants_nothing,
                a_pending_job_is_not_queued,
                a_running_job_is_not_queued,
                an_ended_job_says_how_it_ended,
                a_listed_claim_answers_for_each_job,
                a_lease_duration_out_of_bounds_is_refused,
                a_restarted_worker_owns_nothing_of_its_predecessor,
            ];
            placement: [
                without_a_node_a_container_stays_queued,
                a_container_is_placed_with_all_that_names_its_engine,
                containers_spread_over_the_nodes,
                a_full_node_takes_no_more,
                concurrent_claims_do_not_overfill_a_node,
                a_smaller_node_takes_no_more_than_it_has,
                a_draining_node_gets_no_new_work,
                a_silent_node_gets_no_new_work,
                a_node_of_another_namespace_is_no_node,
                an_expired_lease_keeps_its_slot,
                every_end_frees_the_slot,
                a_changed_endpoint_is_a_new_incarnation,
            ];
            replay: [
                a_repeat_brings_the_recorded_grants,
                a_replayed_grant_is_complete,
                a_repeat_leaves_out_what_is_over,
                a_repeat_of_what_never_arrived_grants,
                an_empty_repeat_stays_empty,
                concurrent_repeats_agree,
                another_request_under_the_id_is_a_conflict,
                another_process_cannot_replay_a_claim,
                a_listed_claim_replays,
                a_listed_repeat_grants_nothing_new,
            ];
            renewal: [
                a_renewal_extends_by_the_stored_duration,
                each_lease_has_its_own_duration,
                an_expired_lease_is_never_revived,
                a_renewal_tells_of_a_requested_cancel,
                past_the_cancel_deadline_a_renewal_extends_nothing,
                past_the_run_deadline_a_renewal_extends_nothing,
                the_run_deadline_leaves_time_to_report_the_timeout,
                progress_is_kept_under_a_live_lease,
                a_progress_note_must_be_small_and_json,
            ];
            attaching: [
                attaching_is_idempotent,
                another_container_is_a_conflict,
                another_node_is_refused,
                a_late_attach_is_refused,
                a_new_grant_has_no_container,
                output_is_stored_as_it_was_written,
                output_sent_twice_is_stored_once,
                late_output_is_refused,
                each_epoch_has_its_own_output,
                after_a_takeover_output_goes_on_where_it_was,
                what_is_stored_is_told_under_a_live_lease_only,
            ];
            ending: [
                a_completion_keeps_exit_code_and_output,
                a_failure_without_a_try_left_is_final,
                a_failure_with_a_try_left_is_tried_again,
                failures_are_counted_by_kind,
                the_job_s_policy_comes_before_the_worker_s,
                the_back_off_keeps_to_its_policy,
                without_a_back_off_a_retry_is_due_at_once,
                a_release_counts_nothing,
                a_delayed_release_waits,
                a_reschedule_goes_on_elsewhere,
                a_payload_conflict_changes_nothing,
                a_repeated_end_reports_the_recorded_outcome,
                another_command_finds_an_ended_lease_not_live,
                an_expired_lease_cannot_end_the_job,
                a_terminal_state_is_final,
                any_failure_text_is_stored,
            ];
            cancelling: [
                a_waiting_job_is_canceled_at_once,
                a_running_job_is_canceled_by_its_holder,
                after_the_request_a_job_never_waits_again,
                after_the_request_a_real_outcome_stands,
                a_second_request_gives_no_more_time,
                an_ended_job_cannot_be_canceled,
                only_a_job_of_the_namespace_can_be_canceled,
                an_expired_lease_keeps_the_request,
            ];
            generations: [
                a_run_carries_its_generation,
                a_raised_generation_ends_what_waits,
                a_raised_generation_leaves_what_runs,
                a_superseded_run_does_not_wait_again,
                a_pause_holds_new_runs_until_the_resume,
                a_terminate_ends_held_runs,
                other_runs_do_not_notice,
                a_recipe_in_flight_goes_on_under_what_it_was_submitted_with,
            ];
            dispatching: [
                a_job_due_at_submit_is_queued_at_once,
                only_due_jobs_are_dispatched,
                each_dispatch_is_counted,
                the_answer_tells_when_to_look_again,
                a_dispatch_keeps_to_its_namespace,
                concurrent_dispatchers_share_the_work,
            ];
            overlapping: [
                without_a_policy_runs_overlap,
                serial_runs_go_one_after_the_other,
                serial_runs_do_not_overtake,
                a_limit_allows_that_many_at_once,
                an_open_claim_keeps_to_the_policy,
                concurrent_claims_keep_to_the_policy,
                every_end_frees_the_workflow_s_slot,
                an_expired_run_still_blocks,
                a_released_serial_run_keeps_its_turn,
            ];
            recovering: [
                nothing_is_taken_over_before_it_expires,
                the_next_expiry_is_told,
                each_takeover_has_its_own_token_and_epoch,
                a_successor_of_the_same_name_takes_over,
                the_oldest_expiry_comes_first,
                a_takeover_keeps_what_the_claim_chose,
                a_takeover_keeps_the_workflow_s_slot,
                the_lost_lease_is_in_the_history,
                a_takeover_has_the_recoverer_s_duration,
                whether_anything_was_started_is_told,
                what_runs_here_is_left_alone,
                a_recovery_keeps_to_its_namespace,
                a_silent_node_s_jobs_are_left_for_later,
                a_forgotten_node_is_not_waited_for_and_a_draining_one_is_asked,
                an_unhealthy_node_s_jobs_are_left_for_later,
                a_node_at_another_engine_is_not_the_same_runtime,
                concurrent_recoverers_share_the_leases_out,
                renewals_and_recoveries_do_not_both_win,
                a_promotion_raises_the_epoch_of_takeovers,
                past_the_deadlines_there_is_time_to_clean_up,
                a_takeover_sets_no_deadline,
            ];
            retaking: [
                a_repeat_brings_the_recorded_takeovers,
                a_repeat_leaves_out_what_was_taken_on,
                a_repeat_of_what_never_arrived_takes_over,
                an_empty_repeat_stays_empty,
                concurrent_repeats_agree,
                another_request_under_the_id_is_a_conflict,
            ];
            losing: [
                a_loss_is_a_system_failure,
                losses_in_a_row_are_a_crash_loop,
                a_recipe_that_gets_on_is_no_crash_loop,
                losses_count_against_the_system_failures,
                a_holder_s_word_ends_the_row_of_losses,
                a_loss_over_a_restart_is_not_counted,
                a_loss_over_a_promotion_is_not_counted,
                what_never_started_counts_nothing,
                after_a_request_to_cancel_a_loss_ends_the_job,
                a_superseded_run_ends_at_its_recovery,
                a_repeated_loss_reports_the_recorded_outcome,
                any_message_of_a_loss_is_stored,
                a_postponed_recovery_waits_for_its_time,
                a_postponed_recovery_delays_no_other,
                only_the_holder_postpones_a_recovery,
            ];
            recording: [
                events_are_one_sequence_without_gaps,
                a_repeated_record_answers_what_stands,
                only_the_holder_records,
                concurrent_records_take_turns,
                a_timer_keeps_its_first_deadline,
                a_full_log_takes_nothing_more,
                what_cannot_be_kept_is_refused,
            ];
            waking: [
                signals_are_taken_in_order,
                a_signal_with_a_key_is_sent_once,
                a_signal_wakes_who_waits_for_it,
                what_has_come_already_is_not_waited_for,
                no_signal_is_slept_through,
                signals_that_nobody_takes_have_a_limit,
                a_waiting_recipe_can_be_cancelled,
            ];
            reopening: [
                an_ended_recipe_is_reopened_and_its_log_keeps_everything,
                only_what_failed_or_was_cancelled_is_reopened,
                a_log_that_changed_meanwhile_is_not_reopened,
                what_was_begun_before_a_reopening_goes_on_after_it,
                a_cancelled_child_counts_as_unfinished,
                a_reopening_makes_an_exact_hint_stale,
                a_full_log_is_not_reopened,
                concurrent_reopenings_are_one,
                a_terminated_workflow_s_run_stays_ended_and_a_paused_one_s_is_held,
            ];
            schemata: [
                a_schema_is_registered_once,
                a_job_keeps_the_schemas_that_it_was_submitted_under,
                only_so_many_recipes_and_ops_have_schemas,
            ];
            parenting: [
                a_child_is_started_once,
                a_child_that_cannot_be_is_refused,
                the_end_of_a_child_is_recorded,
                every_end_of_a_child_wakes_its_parent,
                no_end_of_a_child_is_slept_through,
                children_are_cancelled_with_their_parent,
                a_parent_that_is_cancelled_while_it_waits_takes_its_children_along,
                the_cancel_of_a_parent_meets_the_end_of_its_child,
                a_child_of_its_own_serial_workflow_is_refused,
                a_recipe_that_starts_itself_comes_to_an_end,
            ];
            hinting: [
                an_exact_hint_keeps_a_job_for_those_that_fit,
                every_need_is_compared_with_its_fact,
                a_stale_hint_keeps_nobody_off_for_long,
                without_needs_a_recipe_is_anybody_s,
                an_unknown_version_is_not_claimed,
                the_tenth_handoff_in_a_row_fails,
                a_conflict_publishes_nothing,
            ];
            handing: [
                a_recipe_s_own_failure_is_final,
                refusals_are_counted_in_a_row,
                a_lease_is_read_by_its_owner_alone,
                a_path_is_looked_up,
                a_redeemed_lease_has_one_holder,
                concurrent_redemptions_agree,
                a_payload_is_changed_against_its_revision,
            ];
            containing: [
                a_task_is_placed_once_however_often_it_asks,
                tasks_and_jobs_share_the_slots_of_a_node,
                concurrent_tasks_do_not_overfill_a_node,
                a_task_goes_only_where_its_needs_are_met,
                a_silent_or_draining_node_gets_no_task,
                without_a_node_the_job_comes_to_no_harm,
                the_container_of_a_task_is_recorded_once,
                only_the_holder_places_tasks,
                every_end_frees_the_slots_of_tasks,
                a_takeover_inherits_the_tasks,
                the_output_of_tasks_is_kept_apart,
                the_wait_for_a_node_begins_anew_with_every_event,
            ];
            authority: [
                a_stranger_changes_nothing,
                an_expired_holder_changes_nothing,
                a_replaced_token_changes_nothing,
                reconciliation_only_looks,
                no_answer_shows_the_token,
            ];
        }
    };
}
