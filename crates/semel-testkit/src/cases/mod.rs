//! The conformance kit: what every store must do, one case each, by topic. [`conformance!`](crate::conformance) plays
//! all of them; none can be left out.

pub mod admission;
pub mod batch;
pub mod claims;
pub mod copies;
pub mod crons;
pub mod crowds;
pub mod documents;
pub mod follow_up;
pub mod history;
pub mod holds;
pub mod interleavings;
pub mod leases;
pub mod limits;
pub mod meetings;
pub mod once;
pub mod overlaps;
pub mod people;
pub mod remembering;
pub mod replacing;
pub mod request_ids;
pub mod retention;
pub mod round_trip;
pub mod tasks;
pub mod timers;
pub mod windows;
pub mod workflows;

/// Admits a store to the conformance kit: one test per case, each on a fresh [`Fixture`](crate::Fixture).
/// With `in turn` instead of a name, an asynchronous function plays them one after another.
///
/// The calling crate needs tokio with `macros` and `rt`.
#[macro_export]
macro_rules! conformance {
    (@topic $fixture:expr; $topic:ident: $($case:ident),* $(,)?) => {
        mod $topic {
            #[allow(unused_imports, reason = "the fixture's expression may need the outer names")]
            use super::*;
            $(
                #[tokio::test]
                async fn $case() {
                    let fixture: $crate::Fixture = $fixture;
                    $crate::cases::$topic::$case(&fixture).await;
                }
            )*
        }
    };
    // For stores too expensive to set up per case: an asynchronous function plays the cases in turn.
    (@in_turn $fixture:expr; $topic:ident: $($case:ident),* $(,)?) => {
        $({
            let fixture: $crate::Fixture = $fixture;
            Box::pin($crate::cases::$topic::$case(&fixture)).await;
        })*
    };
    (in turn, $fixture:expr) => {
        $crate::conformance!(@all in_turn $fixture)
    };
    ($name:ident, $fixture:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the fixture's expression may need the outer names")]
            use super::*;
            $crate::conformance!(@all topic $fixture);
        }
    };
    (@all $how:ident $fixture:expr) => {
        $crate::conformance!(@$how $fixture; admission:
            a_job_without_a_policy_is_nobodys_duplicate,
            a_duplicate_of_a_live_job_is_rejected_and_writes_nothing,
            a_key_is_free_when_its_holder_has_ended,
            a_key_is_held_through_every_live_state,
            every_blocking_holder_is_replaced_in_one_commit,
            a_replaced_job_can_no_longer_complete,
            a_replaced_job_names_the_job_that_took_its_place,
            replacing_a_finished_holder_is_refused_and_cancels_nothing,
            a_replacement_takes_over_the_earliest_schedule,
            a_replacement_may_wait_for_the_lease_it_replaces,
            an_expired_waiting_holder_does_not_block,
            an_expired_holder_that_had_begun_blocks_as_a_discarded_one,
            the_same_id_is_answered_as_the_first_time,
            the_same_id_for_something_else_is_refused,
            a_key_that_stands_for_other_work_is_a_mismatch,
            nobody_who_does_other_work_is_replaced,
            a_dead_letter_is_renewed_and_sent_back_in_one_commit,
            a_follow_up_with_other_args_is_not_replaced_with_its_run,
            a_mismatch_is_found_with_the_present_args,
            a_type_is_compared_when_the_body_is_gone,
            a_hidden_holder_is_not_named,
            the_job_named_is_the_active_holder_else_the_newest,
            a_released_key_is_free_and_its_job_goes_on,
            fences_of_one_key_ascend_across_jobs,
            more_holders_than_one_commit_may_touch_are_refused,
            what_is_sent_again_is_other_work_where_its_holder_is,
            a_mismatch_tells_of_a_sensitive_value_its_place,
        );
        $crate::conformance!(@$how $fixture; limits:
            a_limited_job_comes_back_unclaimed_in_its_place,
            a_limited_job_does_not_overtake,
            a_limited_job_goes_before_the_next_queue,
            limited_jobs_are_shown_beyond_the_room_where_nothing_is_granted,
            jobs_of_closed_limits_are_passed_over,
            a_limit_counts_who_runs_and_nobody_else,
            a_retried_job_takes_one_place_of_its_limit,
            a_limit_that_has_a_concurrency_again_counts_whom_it_had_counted,
            two_starts_of_one_limit_meet_at_its_record,
            a_rate_counts_starts_by_the_stores_time,
            settings_are_kept_with_their_queue,
            a_bound_counts_the_jobs_that_wait,
            two_who_see_the_last_place_of_a_queue_meet,
            a_place_that_a_neighbour_leaves_is_not_given_away_with_it,
            a_replacement_needs_room_unless_it_takes_the_place_of_one_that_waited_there,
            a_batch_has_the_room_that_its_replacements_leave,
            a_full_limit_says_when_the_first_of_its_runs_ends,
            a_limited_job_of_a_paused_queue_is_not_started,
            a_limited_follow_up_is_not_started_beside_a_run_of_its_key,
            a_follow_up_needs_room,
        );
        $crate::conformance!(@$how $fixture; replacing:
            a_follow_up_that_a_replacement_lets_go_is_replaced_as_well,
            a_follow_up_that_a_replacement_lets_go_stays_where_it_does_not_block,
            any_number_of_awaited_holders_is_replaced,
            a_step_may_replace_the_step_of_another_workflow,
            a_replaced_step_names_its_own_workflow_alone,
            a_follow_up_of_a_run_that_is_not_replaced_goes_on_waiting,
            a_replacement_of_a_waiting_replacement_waits_as_long,
            a_replacement_that_does_not_wait_passes_the_wait_on,
            a_replacement_that_is_to_be_activated_waits_as_well,
            a_schedule_that_is_kept_activates_nobody,
            a_schedule_that_is_kept_does_not_end_the_wait_for_a_lease,
            a_holder_that_hides_is_not_told_as_what_was_replaced,
        );
        $crate::conformance!(@$how $fixture; request_ids:
            an_absorbed_request_is_recognised_as_long_as_its_follow_up_is_kept,
            an_absorbed_id_with_other_content_is_refused,
            a_request_absorbed_by_a_waiting_job_is_recognised_after_its_start,
            so_many_absorbed_ids_are_kept,
            a_batch_absorbs_an_id_once_or_not_at_all,
            an_id_absorbed_meanwhile_makes_a_decision_stale,
            the_id_of_a_purged_job_stays_taken_while_its_key_is_remembered,
            the_id_of_a_purged_job_is_free_when_its_key_is_released,
            a_purged_job_whose_window_is_renewed_meanwhile_is_still_no_job,
            the_id_of_a_deleted_dead_letter_is_its_own_for_a_day,
            the_ids_that_a_deleted_dead_letter_absorbed_are_its_own_for_a_day,
            an_id_used_in_a_queue_that_one_does_not_see_is_taken,
        );
        $crate::conformance!(@$how $fixture; remembering:
            a_strict_key_is_never_free_again,
            a_window_ends_on_time,
            a_window_from_the_end_begins_with_the_end,
            a_sliding_window_is_renewed_by_its_duplicates,
            decisions_of_one_batch_leave_an_ended_holder_as_it_was,
            a_window_that_is_renewed_in_the_commit_of_its_holders_purge_ends_later,
            a_duplicate_renews_every_holder_that_blocks_by_the_window,
            an_active_holder_blocks_past_its_window_when_asked_to,
            a_purged_job_keeps_its_key_while_its_policy_says_so,
            a_purged_job_whose_window_is_over_frees_its_key,
            a_remembered_holder_is_none_from_the_end_of_its_time,
            a_sliding_window_outlives_the_purge,
            a_later_holder_never_hides_an_earlier_one_whose_window_slides,
            a_purge_without_a_key_leaves_nothing,
            many_uses_of_one_key_leave_few_holders,
            a_later_holder_never_hides_an_earlier_one_that_blocks_longer,
            holders_that_ended_differently_are_all_remembered,
            a_released_ended_holder_stays_released,
            a_released_key_is_released_by_holders_that_were_left_out,
            a_key_is_released_by_all_who_are_remembered_under_it,
            what_was_left_out_of_a_released_key_is_forgotten_in_its_time,
            a_holder_left_out_does_not_come_back,
            a_dead_letter_stands_in_for_nobody,
            a_key_read_for_live_states_alone_does_not_hide_ended_holders_from_the_next,
        );
        $crate::conformance!(@$how $fixture; crowds:
            many_dead_letters_are_in_nobodys_way,
            too_many_dead_letters_are_too_many_wherever_they_are_kept,
            of_too_many_holders_an_expired_one_hides_no_other,
            of_too_many_holders_one_that_expires_unstarted_hides_none_that_has_begun,
        );
        $crate::conformance!(@$how $fixture; windows:
            a_mismatch_starts_a_sliding_window_again,
            a_refused_batch_starts_the_window_again_that_refused_it,
            a_dead_letter_that_is_not_sent_back_starts_the_window_again,
        );
        $crate::conformance!(@$how $fixture; holds:
            a_key_is_held_through_a_pause_and_a_return,
            a_job_that_a_limit_holds_back_holds_its_key,
            who_has_not_the_lease_frees_no_key,
            neither_copies_nor_children_touch_a_key,
            a_run_outlasts_its_window,
            a_delay_outlasts_its_window,
            retries_outlast_their_window,
            what_is_known_of_duplicates_outlives_what_a_worker_writes,
        );
        $crate::conformance!(@$how $fixture; meetings:
            the_second_of_two_releases_finds_nobody,
            a_release_and_a_replacement_meet,
            an_expiry_and_an_admission_meet,
        );
        $crate::conformance!(@$how $fixture; batch:
            an_empty_commit_does_nothing,
            later_items_see_earlier_ones,
            all_or_nothing_stores_nothing_when_one_is_refused,
            a_later_group_may_rely_on_what_an_earlier_one_writes,
            a_stale_group_leaves_the_others_applied,
            a_group_that_relies_on_a_stale_one_is_stale,
            a_claim_in_the_same_commit_sees_its_groups,
            a_large_batch_is_stored_whole,
            a_job_that_an_earlier_group_purges_holds_nothing_for_a_later_one,
            a_job_whose_id_was_used_before_has_a_version_of_its_own,
            an_id_is_free_at_once_when_its_job_is_gone,
        );
        $crate::conformance!(@$how $fixture; interleavings:
            a_follow_up_waits_for_a_run_whose_row_was_loaded_before_it_began,
            the_second_of_two_admissions_is_stale,
            every_write_of_a_holder_moves_its_key,
            an_admission_on_top_of_an_end_is_stale_when_the_key_has_moved,
            an_answer_on_top_of_an_end_is_stale_when_the_key_has_moved,
            a_holder_that_is_gone_meanwhile_is_looked_for_again,
            the_second_of_two_admissions_is_stale_even_after_the_first_has_ended,
            the_second_of_two_replacements_is_stale,
            a_replacement_is_stale_when_its_holder_was_claimed,
            an_ack_is_stale_when_the_lease_was_reaped,
            an_ack_is_stale_when_the_job_was_cancelled,
            an_admission_is_stale_when_its_holder_was_purged,
            an_admission_decided_before_the_filing_of_a_holder_is_stale_or_right,
            an_ack_decided_before_other_jobs_were_filed_holds,
            a_queue_setting_decided_on_an_old_one_is_stale,
            a_version_does_not_repeat_after_deletion,
            a_window_renewed_by_two_duplicates_moves_once_for_each,
            an_amendment_is_stale_when_the_job_was_claimed,
            an_insert_with_a_taken_id_is_stale,
            a_read_that_nothing_touched_holds,
            a_decision_on_a_job_that_was_purged_meanwhile_is_stale,
            a_group_that_relies_on_a_stale_one_is_stale_even_if_the_numbers_meet,
            a_decision_that_found_a_purged_job_gone_holds,
        );
        $crate::conformance!(@$how $fixture; claims:
            higher_priority_first_then_the_longest_waiting_then_the_older_id,
            the_queue_named_first_is_emptied_first,
            a_queue_named_twice_gives_each_job_once,
            a_claim_is_bounded_by_its_limit,
            two_claims_in_one_commit_never_share_a_job,
            a_paused_queue_gives_nothing_until_it_is_resumed,
            a_grant_is_filled_in,
            a_job_says_how_long_its_lease_lasts,
            a_claim_brings_body_and_notes,
            an_expired_job_is_not_granted_whether_or_not_swept,
            a_job_without_attempts_is_not_granted,
            jobs_that_wait_for_something_are_not_claimed,
        );
        $crate::conformance!(@$how $fixture; leases:
            a_heartbeat_moves_the_deadline_and_not_the_fence,
            an_ack_with_an_old_lease_is_refused,
            another_worker_is_refused,
            a_repeated_ack_is_answered_as_the_first_time,
            a_repeated_failure_is_answered_as_the_first_time,
            a_lease_that_ran_out_gives_the_job_to_another,
            a_lease_that_ran_out_is_noted_as_a_failure,
            a_lease_lost_at_the_last_attempt_ends_the_job,
            a_run_that_lasts_too_long_fails_by_timeout,
            a_job_given_back_has_its_attempt_back,
            a_snoozed_job_waits_for_its_time_and_has_its_attempt_back,
            progress_is_kept_and_has_the_lease_last_as_a_heartbeat_does,
            a_worker_may_say_when_to_try_again,
            an_end_is_repeated_by_the_request_that_made_it_alone,
            a_failure_that_is_not_to_be_tried_again_ends_the_job,
            a_dead_letter_that_is_sent_back_begins_anew,
            of_two_who_tell_progress_at_once_one_tells_it_again,
            a_job_is_cancelled_while_it_waits,
            a_failed_job_is_tried_again_until_its_attempts_are_used_up,
            a_dead_letter_can_be_sent_back,
            a_dead_letter_whose_key_is_held_is_not_sent_back,
            a_dead_letter_whose_key_was_released_is_not_sent_back,
            a_dead_letter_that_is_not_sent_back_is_told_as_little_as_when_it_is_offered,
        );
        $crate::conformance!(@$how $fixture; timers:
            time_never_goes_back,
            what_is_due_comes_oldest_first_and_bounded,
            nothing_is_due_before_its_time,
            each_kind_of_due_is_apart,
            a_job_that_moved_on_is_due_no_more,
            a_promoted_job_takes_its_place_by_its_time,
            an_activated_job_takes_its_place_by_its_activation,
            a_time_that_has_come_is_now,
        );
        $crate::conformance!(@$how $fixture; follow_up:
            a_waiting_job_is_overwritten,
            a_request_takes_over_no_job_of_another_type,
            a_started_job_gets_a_follow_up_that_is_released_with_its_end,
            a_follow_up_is_released_by_whatever_end,
            a_follow_up_keeps_its_own_time,
            a_second_request_overwrites_the_follow_up,
            a_request_is_not_lost_by_when_another_expires,
            a_follow_up_waits_for_every_started_holder,
            a_follow_up_never_overlaps_a_run_of_its_key,
            a_request_absorbed_before_is_answered_without_writing,
            a_follow_up_is_not_activated_by_hand,
            a_follow_up_that_waits_again_goes_before_the_next_one,
            a_run_that_ends_first_does_not_cut_off_one_that_waits_again,
            two_follow_ups_that_meet_a_run_are_both_let_go,
            two_started_follow_ups_that_meet_a_run_are_both_let_go,
            a_follow_up_that_was_given_back_waits_behind_one_that_was_started,
            a_follow_up_is_held_again_where_a_run_is_in_its_way_alone,
        );
        $crate::conformance!(@$how $fixture; history:
            a_finished_job_can_be_read_until_it_is_purged,
            nothing_is_purged_before_its_time,
            a_note_on_a_finished_job_is_kept,
            a_removed_note_is_gone,
            a_deleted_dead_letter_is_gone,
            a_revived_job_is_filed_again_when_it_ends_again,
            conservation_created_is_live_and_finished_and_purged,
        );
        $crate::conformance!(@$how $fixture; retention:
            a_job_is_kept_as_long_as_was_decided_when_it_ended,
            every_way_to_end_has_a_time_of_its_own,
            a_key_is_never_free_early_however_short_its_job_is_kept,
            a_job_that_is_kept_longer_is_hidden_by_no_later_one,
            many_uses_of_one_key_leave_few_holders_however_long_they_are_kept,
            a_job_that_lives_again_has_forgotten_how_long_it_was_to_be_kept,
            a_burned_lease_is_not_taken_for_how_long_a_job_is_kept,
        );
        $crate::conformance!(@$how $fixture; people:
            queues_count_their_jobs_by_state,
            the_longest_waiting_job_is_shown,
            a_queue_with_nothing_but_a_setting_is_listed,
            a_listing_is_paged_newest_first,
            a_listing_is_filtered,
            a_listing_of_nothing_is_empty,
            a_listing_ends_although_its_last_job_has_just_gone,
            the_log_tells_what_happened_in_order,
            the_log_is_paged_by_its_cursor,
            only_the_last_page_of_the_log_is_short,
            the_log_says_how_far_it_reaches,
            a_glance_says_what_a_load_says,
            clearing_leaves_nothing,
        );
        $crate::conformance!(@$how $fixture; documents:
            a_document_comes_back_as_it_was_written,
            a_document_that_was_written_again_is_the_newer,
            a_deleted_document_is_gone,
            documents_of_a_kind_are_paged_by_name,
            documents_are_due_in_order_and_bounded,
            a_workflow_that_cannot_be_read_is_in_nobodys_way,
            the_second_of_two_writers_of_a_document_is_stale,
            a_document_made_meanwhile_makes_a_decision_stale,
            a_group_that_relies_on_a_stale_document_is_stale,
        );
        $crate::conformance!(@$how $fixture; workflows:
            a_chain_goes_on_step_by_step,
            a_chain_stops_at_its_first_failure,
            the_steps_of_a_group_are_independent,
            callbacks_come_when_all_jobs_have_ended,
            a_step_of_a_graph_waits_for_all_its_parents,
            results_are_handed_on,
            results_that_are_too_large_are_named_instead,
            a_refused_step_fails_with_the_duplicates_error,
            a_step_may_stand_for_a_job_that_is_there_already,
            a_job_that_a_step_amends_is_given_what_the_step_is,
            a_step_may_stand_for_a_job_that_has_ended,
            a_long_line_of_ended_jobs_goes_on_in_pieces,
            a_step_that_was_offered_has_no_list_of_results,
            a_step_whose_job_is_replaced_goes_on_with_the_new_one,
            a_step_ends_with_whatever_ends_its_job,
            a_cancelled_workflow_takes_its_jobs_with_it,
            a_workflow_is_told_of_a_cancelled_job,
            one_job_may_end_steps_of_several_workflows,
            the_same_workflow_id_is_answered_as_the_first_time,
            a_workflow_is_forgotten_after_its_time,
            what_becomes_of_a_workflow_is_in_the_log,
            an_ack_and_the_next_step_are_one_commit,
            two_parents_that_end_at_once_release_their_child_once,
            a_cancellation_is_stale_when_a_step_has_ended,
            a_binding_is_stale_when_its_job_has_ended,
        );
        $crate::conformance!(@$how $fixture; tasks:
            a_task_lives_while_its_steps_run_and_ends_with_the_last,
            a_duplicate_of_a_task_creates_nothing,
            a_task_fails_with_its_step,
            a_task_and_its_steps_are_cancelled_together,
            a_replaced_task_takes_its_steps_with_it,
            a_step_that_ends_with_its_replaced_task_is_named_as_cancelled,
            a_task_that_would_fail_by_what_is_replaced_is_in_the_way_as_it_is,
            the_second_of_two_tasks_of_one_identity_is_stale,
            a_task_is_nobodys_to_run,
            a_task_whose_steps_are_all_refused_has_failed,
            a_tasks_context_is_kept_as_it_was_given,
            a_task_cannot_be_put_off,
        );
        $crate::conformance!(@$how $fixture; once:
            a_request_that_is_sent_again_is_answered_as_the_first_time,
            another_request_under_the_key_is_refused,
            the_second_of_two_requests_of_one_key_is_stale,
            a_request_that_stored_nothing_is_not_remembered,
            a_request_is_forgotten_when_its_time_is_over,
            a_replacement_is_not_made_twice,
            an_amendment_is_not_made_twice,
            a_task_that_is_asked_for_again_is_answered_as_the_first_time,
            a_request_is_remembered_longer_than_what_it_created,
            the_second_of_two_requests_of_one_group_is_answered_as_the_first,
        );
        $crate::conformance!(@$how $fixture; crons:
            a_tick_offers_its_job_once,
            a_tick_that_two_servers_decide_is_taken_once,
            a_tick_is_skipped_while_an_earlier_job_goes_on,
            a_tick_may_run_beside_an_earlier_job,
            a_tick_may_cancel_the_earlier_job,
            a_tick_may_wait_for_the_end_of_the_earlier_job,
            a_cancelled_waiting_tick_lets_nobody_run_beside_the_first,
            a_replaced_waiting_tick_lets_nobody_run_beside_the_first,
            who_waits_for_a_tick_that_a_stranger_replaces_runs_beside_nobody,
            a_tick_that_was_held_back_waits_for_the_lease_it_replaced,
            a_tick_that_is_a_duplicate_makes_nobodys_job_the_crons,
            a_late_tick_is_one_tick,
            a_tick_goes_by_its_jobs_unique_policy,
            what_becomes_of_a_tick_is_in_the_log,
            a_disabled_cron_does_not_tick_and_makes_up_for_nothing,
            registering_again_keeps_the_next_tick_and_the_history,
            changing_a_cron_to_its_own_schedule_loses_no_tick,
            registering_again_leaves_a_disabled_cron_disabled,
            a_name_is_not_taken_from_a_queue_that_one_does_not_see,
            a_cron_of_a_queue_that_one_does_not_see_is_not_acted_on,
            a_triggered_cron_fires_now_and_keeps_its_schedule,
            a_removed_cron_is_gone_and_its_name_begins_anew,
            a_tick_signs_its_job,
            an_interval_counts_from_the_tick_and_not_from_its_decision,
            registering_again_changes_whatever_it_says_anew,
        );
        $crate::conformance!(@$how $fixture; overlaps:
            a_tick_waits_behind_any_number_of_cancelled_ones,
            a_dead_letter_that_is_sent_back_counts_again,
            a_stranger_in_the_place_of_its_job_skips_no_tick,
            a_tick_waits_for_the_run_before_one_that_people_activate,
            a_held_tick_begins_no_sooner_than_its_template_says,
            a_held_tick_that_keeps_a_schedule_is_not_put_off,
            a_pending_tick_waits_for_people_alone,
            a_tick_cancels_any_number_of_held_ones,
            a_tick_is_decided_however_often_its_job_was_replaced,
            a_duplicate_tick_moves_its_holders_window,
            a_policy_holds_for_the_runs_of_the_one_before,
            a_tick_waits_for_those_that_were_let_beside_a_held_one,
            a_tick_that_keeps_a_schedule_waits_for_the_run_all_the_same,
            a_tick_that_admits_nothing_cancels_nothing,
            a_tick_that_takes_a_place_does_not_wait_for_who_waits_for_it,
            a_tick_takes_the_place_of_strangers_before_a_long_line,
            a_tick_takes_a_place_within_a_line,
            a_tick_that_takes_a_place_waits_for_the_run_beside_it,
            a_tick_that_two_strangers_stand_for_is_known_once,
            a_cron_that_could_not_tick_ticks_again,
        );
        $crate::conformance!(@$how $fixture; copies:
            a_copy_answers_as_its_original,
            a_store_goes_on_for_the_one_it_is_a_copy_of,
            a_copy_that_was_broken_off_goes_on,
            a_copy_that_cannot_be_whole_is_refused,
            a_source_that_somebody_writes_to_is_noticed,
        );
        $crate::conformance!(@$how $fixture; round_trip:
            a_plain_job_comes_back_as_it_was_written,
            what_is_named_twice_comes_back_once,
            the_largest_values_come_back,
            every_state_role_and_ending_comes_back,
            every_hold_comes_back,
            every_note_comes_back,
            a_large_body_comes_back,
            the_oldest_and_youngest_ids_come_back,
            long_names_come_back,
            a_read_of_what_is_not_there_says_so,
        );
    };
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// A case that is written but never played proves nothing.
    #[test]
    fn every_case_is_in_the_macro() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cases");
        let kit = include_str!("mod.rs");
        let mut cases = 0;
        for topic in kit.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')) {
            let text = std::fs::read_to_string(folder.join(format!("{topic}.rs"))).unwrap();
            let written =
                text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next());
            let mut written: Vec<&str> = written.collect();
            let (_, listed) = kit
                .split_once(&format!("$fixture; {topic}:\n"))
                .unwrap_or_else(|| panic!("the macro has no {topic}"));
            let listed = listed.lines().map_while(|line| line.trim().strip_suffix(','));
            let mut played: Vec<&str> = listed.collect();
            written.sort_unstable();
            played.sort_unstable();
            assert_eq!(written, played, "cases of {topic}: written, and played");
            cases += written.len();
        }
        assert!(cases > 100, "{cases}");
    }
}
