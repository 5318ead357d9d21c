//! Generates the tests of a provider. Each case of the suite gets a function that opens two devices that reach each
//! other. The macro argument `$within` runs the case.

#[macro_export]
macro_rules! provider {
    ($name:ident, $within:path, $open:path $(, #[$only:meta])?) => {
        mod $name {
            $crate::provider! { @tests $within, $open, ($(#[$only])?);
                    connected: sends_of_every_size_arrive, every_path_mtu_carries_every_operation,
                        immediate_data_and_invalidation,
                        a_peer_invalidates_only_windows_bound_for_it, writes_of_every_size_arrive,
                        reads_of_every_size_arrive, atomics_change_memory_and_return_the_old_value,
                        atomics_of_many_are_atomic, inline_data_is_copied, scatter_gather_lists,
                        unsignalled_requests_complete_with_the_next_signalled, a_fence_waits_for_reads,
                        a_fence_waits_only_for_earlier_reads, a_lost_result_of_an_atomic_is_sent_again,
                        requests_complete_in_order, a_message_larger_than_any_window, a_queue_pair_may_be_connected_to_itself;
                    unreliable: unreliable_connections_carry_sends_and_writes,
                        unreliable_connections_drop_messages_without_a_receive, datagrams_bring_their_header,
                        datagrams_with_a_wrong_qkey_are_dropped,
                        a_qkey_with_the_high_bit_selects_the_senders_qkey, datagrams_that_do_not_fit_are_dropped,
                        one_datagram_queue_pair_serves_many;
                    states: the_states_of_each_transport, posting_depends_on_the_state,
                        errors_flush_everything_in_order, a_reset_queue_pair_can_be_used_again,
                        a_reset_unreliable_queue_pair_can_be_used_again,
                        draining_finishes_started_requests, a_peer_that_is_gone_ends_the_retries,
                        rnr_retries_end, rnr_retries_wait_for_a_receive, queries_return_the_set_attributes;
                    queues: a_shared_receive_queue_serves_many, the_limit_event_comes_once,
                        the_next_completion_notifies, only_solicited_completions_notify,
                        notifications_of_several_queues, a_queue_of_one_works_and_is_full_with_one,
                        a_completion_queue_of_one_works, asynchronous_events_wake_their_descriptor,
                        events_are_removed_with_their_objects,
                        notifications_are_removed_with_their_queue, poll_reports_an_overrun;
                    misuse: remote_accesses_that_are_refused, operations_that_a_transport_does_not_have,
                        numbers_out_of_range, receives_that_are_too_short;
                    memory: every_kind_of_memory_carries_messages, mirrored_memory_wraps,
                        files_are_written_through, invalid_sizes_of_memory_are_refused, accessors_panic_outside_the_region,
                        a_written_word_is_seen_when_spun_on, a_window_opens_a_part_of_a_region_and_can_be_closed;
                    lifetime: handles_keep_their_dependencies, a_region_dropped_under_a_send,
                        a_region_dropped_under_a_receive, a_region_dropped_under_remote_access,
                        a_region_dropped_while_it_is_read, a_queue_pair_destroyed_under_traffic,
                        destroying_makes_room_for_others;
                    threads: many_threads_share_a_device, many_threads_share_a_queue_pair,
                        a_thousand_queue_pairs, connections_come_and_go
            }
        }
    };
    // Tests of behaviour that RNICs need not have: queues of exactly the requested depth, and checks of scatter-gather
    // elements at posting.
    (@exact $name:ident, $within:path, $open:path) => {
        mod $name {
            $crate::provider! { @tests $within, $open, ();
                    queues: a_completion_queue_reports_its_overrun;
                    misuse: foreign_protection_domains, foreign_devices, ranges_outside_a_region,
                        rights_that_were_not_granted, full_queues_and_lists_that_are_too_long,
                        a_list_is_accepted_up_to_the_first_mistake
            }
        }
    };
    (@tests $within:path, $open:path, $only:tt; $($module:ident: $($test:ident),+);+) => {
        $($($crate::provider! { @test $within, $open, $only, $module, $test })+)+
    };
    (@test $within:path, $open:path, ($(#[$only:meta])?), $module:ident, $test:ident) => {
            #[test]
            $(#[$only])?
            fn $test() {
                $within(|| $crate::$module::$test(&$open));
            }
    };
}
