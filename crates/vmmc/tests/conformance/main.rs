//! One suite for every kind of node: embedded, daemon, simulated. Each test is a function over
//! [`nodes::Nodes`]; `suite!` makes a module of tests for a kind.
//!
//! To add a kind, implement `Nodes` for it in `nodes.rs` and add one `suite!` line below.

mod bindings;
mod by_token;
mod continuing;
mod control;
mod endpoints;
mod errors;
mod gathering;
mod long_payloads;
mod moving;
mod names;
mod nodes;
mod notifications;
mod order;
mod pinning;
mod product;
mod redirections;
mod revocation;
mod rings;
mod threads;
mod tokens;
mod waiting;

macro_rules! suite {
    ($kind:ident, $make:expr) => {
        mod $kind {
            suite!(@tests $make;
                moving: every_length_and_alignment_arrives_and_nothing_else,
                moving: fetches_of_every_length_see_what_is_there,
                moving: long_transfers_arrive_whole,
                moving: memory_may_change_when_a_long_send_from_it_is_done,
                moving: sends_that_follow_at_once_keep_their_data,
                moving: registered_memory_moves_both_ways,
                moving: callers_memory_is_exported_and_adopted,
                moving: transfers_can_be_polled_awaited_and_dropped,
                moving: many_transfers_can_be_under_way,
                moving: pieces_are_gathered_and_scattered,
                moving: atomics_return_the_old_value,
                moving: counters_grow_after_the_data,
                moving: empty_transfers_are_legal,
                pinning: any_memory_is_sent_and_fetched_at_every_alignment,
                pinning: later_uses_of_pinned_memory_call_nobody,
                pinning: a_few_pages_of_a_plain_slice_are_copied_and_not_pinned,
                pinning: a_limit_evicts_by_policy_and_data_stays_right,
                pinning: forgotten_memory_is_private_again,
                pinning: memory_that_cannot_be_pinned_is_copied,
                pinning: transfers_of_any_memory_are_under_way_at_once,
                pinning: pages_of_transfers_under_way_are_not_given_up,
                pinning: lent_memory_is_sent_as_any_other,
                pinning: translations_that_the_program_places_are_used_by_index,
                product: every_source_goes_by_every_way_with_every_option,
                product: every_source_is_checked_before_a_byte_moves,
                product: every_target_is_filled_by_every_way,
                product: long_transfers_of_every_kind_arrive_whole,
                product: transfers_that_nobody_looks_at_do_not_stop_others,
                order: sends_appear_in_order,
                order: short_sends_come_after_the_long_ones_before_them,
                order: the_last_byte_of_a_send_appears_last,
                order: fetches_and_atomics_see_earlier_sends,
                order: an_import_with_an_order_of_its_own_does_not_wait_for_bulk_of_another,
                order: an_import_with_an_order_of_its_own_keeps_it,
                order: notifications_come_after_their_data,
                order: sends_of_a_dropped_import_arrive,
                names: exports_are_found_by_name_and_by_id,
                names: an_import_waits_for_its_export,
                names: a_waiting_import_does_not_hold_up_other_calls,
                names: unknown_names_are_errors_at_once_and_after_the_wait,
                names: a_name_is_taken_until_its_export_ends,
                names: stale_ids_never_lead_to_other_memory,
                names: rights_that_the_export_lacks_are_refused,
                names: hundreds_of_exports_and_imports_live_side_by_side,
                revocation: after_unexport_no_byte_arrives_and_importers_are_told,
                revocation: unexport_moving_leaves_the_content,
                revocation: shared_pages_are_not_moved,
                revocation: a_dropped_export_ends_and_its_name_is_free,
                revocation: when_the_owner_leaves_importers_are_told,
                revocation: unexport_under_fire_is_final,
                notifications: one_comes_for_each_that_was_asked_for,
                notifications: they_say_who_sent_and_carry_a_word_by_every_way,
                notifications: they_come_only_if_the_export_allows_them,
                notifications: they_can_be_blocked_and_unblocked,
                notifications: a_handler_gets_them_on_its_own_thread,
                notifications: a_handler_of_one_export_gets_only_its_own,
                notifications: a_sleeping_waiter_is_woken,
                notifications: an_event_loop_sees_them,
                notifications: overflow_is_counted,
                notifications: a_long_send_notifies_once_for_all,
                notifications: a_wait_ends_at_its_deadline,
                waiting: whatever_comes_first_ends_the_wait_and_is_still_there,
                waiting: a_transfer_of_any_kind_ends_the_wait_when_it_is_over,
                waiting: threads_that_wait_for_descriptors_and_threads_that_do_not_wake_each_other,
                waiting: a_wait_for_several_things_refuses_what_can_never_come_and_ends_at_its_deadline,
                waiting: when_the_node_ends_a_wait_for_several_things_ends,
                continuing: each_runs_once_when_its_transfer_is_over_and_may_add_others,
                continuing: a_chain_of_them_holds_no_poller_up,
                continuing: one_that_runs_the_others_itself_leaves_none_of_them_out,
                continuing: they_are_waited_for_beside_other_things,
                continuing: when_the_session_leaves_all_of_them_run,
                redirections: before_arrival_nothing_is_copied,
                redirections: after_arrival_all_is_copied,
                redirections: after_much_has_arrived_all_of_it_is_copied,
                redirections: in_the_middle_the_report_tells_the_parts,
                redirections: a_cancelled_one_lets_data_go_to_the_export,
                redirections: consumed_data_counts_as_not_arrived,
                redirections: only_redirectable_exports_take_them,
                gathering: all_places_are_written_and_one_notification_follows,
                gathering: a_counter_grows_once_when_all_is_there,
                gathering: a_wrong_piece_moves_and_tells_nothing,
                rings: records_come_whole_in_the_order_of_each_sender_and_name_it,
                rings: a_full_ring_says_so_and_leaves_room_for_others,
                rings: no_record_overtakes_one_that_found_no_room,
                rings: only_appends_go_to_rings_and_only_to_rings,
                rings: a_ring_that_its_owner_damaged_says_so,
                tokens: payloads_of_every_length_and_source_come_whole_in_their_buffer,
                tokens: a_token_lets_one_payload_in_and_none_when_it_is_wrong_or_cancelled,
                tokens: token_tables_say_what_is_wrong_with_what_they_are_given,
                tokens: a_buffer_whose_payload_never_ends_is_kept_back,
                tokens: ranges_of_a_region_take_payloads_where_no_other_token_is,
                redirections: thousands_are_posted_ahead_and_each_is_told,
                redirections: what_posting_went_wrong_with_is_told_by_the_wait,
                redirections: dropped_before_the_answer_they_leave_nothing_behind,
                redirections: they_end_with_their_export,
                redirections: when_the_node_ends_they_end,
                bindings: plain_stores_appear_in_the_export,
                bindings: unmapped_imports_say_why_they_cannot_be_bound,
                bindings: unexport_takes_the_pages_from_a_binding,
                errors: ranges_outside_are_refused,
                errors: missing_rights_are_named,
                errors: misaligned_words_are_refused,
                errors: buffers_of_other_sessions_are_refused,
                errors: impossible_exports_are_refused,
                errors: an_unknown_or_silent_node_is_an_error_in_time,
                errors: when_the_node_ends_calls_and_waits_end,
                errors: when_the_other_node_ends_imports_are_told,
                control: the_path_is_explained,
                control: what_happened_is_counted,
                control: the_node_sees_what_went_through_each_import,
                control: nodes_answer_pings_and_questions,
                threads: threads_share_a_session,
                threads: more_threads_than_lanes_still_move_data,
                threads: waiting_threads_do_not_starve_each_other,
            );
            suite!(@endpoints $make);
        }
    };
    (unmapped $kind:ident, $make:expr) => {
        mod $kind {
            suite!(@endpoints || crate::nodes::Unmapped($make()));
        }
    };
    (@endpoints $make:expr) => {
        suite!(@tests $make;
            endpoints: an_event_loop_leaves_wake_ups_to_a_thread_that_waits,
            by_token: payloads_by_token_land_in_their_buffer_and_messages_say_so,
            by_token: senders_that_die_in_mid_payload_do_not_use_the_buffers_up,
            endpoints: messages_come_whole_with_their_payloads_in_the_order_of_each_sender,
            endpoints: a_sender_without_credit_waits_or_is_told_and_loses_nothing,
            endpoints: what_a_sender_heard_early_is_not_the_last_word,
            endpoints: a_sender_that_waits_goes_on_when_a_frame_comes_back_from_another_thread,
            endpoints: a_message_that_is_used_again_has_nothing_of_the_one_before,
            endpoints: messages_of_two_parts_go_and_come_in_two,
            endpoints: what_a_message_was_sent_from_may_change_at_once,
            by_token: what_a_payload_by_token_was_sent_from_may_change_at_once,
            endpoints: senders_that_flood_take_turns_with_the_others,
            endpoints: a_sender_that_dies_in_mid_message_leaves_nothing_half_visible,
            endpoints: a_sender_without_a_pause_holds_up_nobody_who_connects,
            endpoints: a_sender_that_was_silent_for_long_is_heard,
            endpoints: an_owner_that_waits_in_vain_sleeps,
            endpoints: senders_come_and_go_and_leave_no_place_behind,
            endpoints: a_sender_that_dies_leaves_no_place_behind,
            endpoints: what_cannot_be_is_an_error_that_says_what_to_do,
            endpoints: a_hostile_sender_is_cut_off_and_others_are_served,
            endpoints: a_message_whose_mark_another_takes_off_the_board_is_heard,
            endpoints: a_message_whose_mark_another_takes_off_the_board_wakes_its_owner,
            endpoints: an_event_loop_hears_of_messages_and_senders,
            endpoints: a_handler_gets_every_message_and_gives_the_endpoint_back,
            long_payloads: they_come_in_one_piece_and_go_back_as_a_whole,
            long_payloads: one_waits_for_its_frames_and_short_ones_leave_them_alone,
            long_payloads: those_that_a_hostile_sender_makes_up_cost_it_its_channel,
        );
    };
    (@tests $make:expr; $($module:ident: $test:ident,)*) => {
        $(#[test] fn $test() { crate::$module::$test(&($make)()); })*
    };
}

suite!(embedded, crate::nodes::Embedded::start);
suite!(plain, crate::nodes::Embedded::start_plain);
suite!(daemon, crate::nodes::Daemons::start);
suite!(simulated, crate::nodes::Simulated::start);
// Within a node, endpoints that go through the engine.
suite!(unmapped embedded_unmapped, crate::nodes::Embedded::start);
suite!(unmapped daemon_unmapped, crate::nodes::Daemons::start);
suite!(unmapped simulated_unmapped, crate::nodes::Simulated::start);

/// A message to another node, its payload and its mark of the board share a packet, and so does
/// what asks for the answer that its sender waits for.
#[test]
fn what_belongs_to_a_message_goes_in_as_few_packets_as_it_can() {
    const ROUNDS: u64 = 50;
    for nodes in [nodes::Embedded::start_plain(), nodes::Embedded::start()] {
        let mut ends = by_token::with_tokens(&nodes);
        let (sender, session) = (&mut ends.senders[1], &ends.sessions[1]);
        let counted = || {
            let info = session.node_info(false).expect("an answer");
            ["commands", "udp_datagrams_out"]
                .map(|wanted| info.counters.iter().find(|(name, _)| name == wanted).expect("counted").1)
        };
        let registered = session.buffer(1_000).expect("memory");
        // Message and mark; payload, message, mark and question.
        for (by_token, commands) in [(false, 2), (true, 4)] {
            let before = counted();
            for _ in 0..ROUNDS {
                // So long that the owner is not taken for one that polls.
                std::thread::sleep(std::time::Duration::from_millis(1));
                let buffer = by_token.then(|| ends.endpoint.token_buffer().expect("one is free"));
                match &buffer {
                    Some(buffer) => sender.send_by_token(b"with it", buffer.token(), registered.range(0..1_000)),
                    None => sender.send(b"alone", b""),
                }
                .expect("there is room");
                let came = ends.endpoint.wait().expect("it comes").by_token().map(|by| by.len);
                assert_eq!(came, by_token.then_some(Ok(1_000)));
            }
            let after = counted();
            let [done, packets] = [0, 1].map(|which| after[which] - before[which]);
            // Now and then the sender asks what is free.
            assert!((commands * ROUNDS..commands * ROUNDS + ROUNDS / 2).contains(&done), "{done} commands: {by_token}");
            assert!((ROUNDS..ROUNDS * 3 / 2).contains(&packets), "{packets} packets, by token: {by_token}");
        }
    }
}

/// Long data goes between plain nodes of one machine by reference to its pages, and straight to its
/// place; what is encrypted does neither.
#[test]
fn plain_nodes_of_one_machine_move_long_data_without_copies_of_their_own() {
    for (nodes, plain) in [(nodes::Embedded::start_plain(), true), (nodes::Embedded::start(), false)] {
        moving::memory_may_change_when_a_long_send_from_it_is_done(&nodes);
        let counted = |node: usize, wanted: &str| {
            let info = nodes::Nodes::attach(&nodes, node).node_info(false).expect("an answer");
            info.counters.iter().find(|(name, _)| name == wanted).expect("counted").1
        };
        let spliced = counted(1, "udp_datagrams_spliced");
        assert_eq!(spliced > 100, plain, "{spliced} datagrams by reference");
        let placed: u64 = (0..2).map(|node| counted(node, "udp_datagrams_placed")).sum();
        assert_eq!(placed > 50, plain, "{placed} datagrams placed");
    }
}
