//! The list of all cases, and the tests that it generates for a provider. Each case of the suite gets a function that
//! opens two devices that reach each other. The macro argument `$within` runs the case.

/// Calls a macro with all cases of the suite, by module. Each case has the rule that it checks: a section of IBTA
/// Vol 1, a manual page, or a contract of Doorbell.
#[macro_export]
macro_rules! verbs_cases {
    ([$($then:tt)+] $($first:tt)*) => {
        $($then)+! { $($first)*
            connected: sends_of_every_size_arrive "9.4.1",
                every_path_mtu_carries_every_operation "9.4",
                sequence_numbers_wrap "9.7.1",
                immediate_data_and_invalidation "9.4.1.1.3",
                a_peer_invalidates_only_windows_bound_for_it "10.6.7.2.6",
                writes_of_every_size_arrive "9.4.3",
                reads_of_every_size_arrive "9.4.4",
                atomics_change_memory_and_return_the_old_value "9.4.5",
                atomics_of_many_are_atomic "9.4.5",
                inline_data_is_copied "ibv_post_send(3)",
                scatter_gather_lists "11.4.1.1",
                unsignalled_requests_complete_with_the_next_signalled "10.8.5",
                a_fence_waits_for_reads "10.8.3.3",
                a_fence_waits_only_for_earlier_reads "10.8.3.3",
                a_lost_result_of_an_atomic_is_sent_again "9.7.5.2.8",
                requests_complete_in_order "10.8.5",
                a_message_larger_than_any_window "9.4.1",
                a_queue_pair_may_be_connected_to_itself "10.3.1";
            unreliable: unreliable_connections_carry_sends_and_writes "9.8.2",
                unreliable_connections_drop_messages_without_a_receive "9.8.2.2",
                datagrams_bring_their_header "11.4.1.2",
                datagrams_with_a_wrong_qkey_are_dropped "9.8.3",
                datagrams_in_a_row_arrive_although_their_sender_does_not_poll "9.8.3",
                a_qkey_with_the_high_bit_selects_the_senders_qkey "10.2.5",
                datagrams_that_do_not_fit_are_dropped "9.8.3",
                one_datagram_queue_pair_serves_many "9.8.3";
            states: the_states_of_each_transport "11.2.5.2, table 92",
                posting_depends_on_the_state "10.3.1",
                errors_flush_everything_in_order "10.3.1",
                a_reset_queue_pair_can_be_used_again "10.3.1",
                a_reset_unreliable_queue_pair_can_be_used_again "10.3.1",
                draining_finishes_started_requests "10.3.1.5",
                a_peer_that_is_gone_ends_the_retries "9.9.2.1.1",
                rnr_retries_end "9.7.5.2.8",
                rnr_retries_wait_for_a_receive "9.7.5.2.8",
                queries_return_the_set_attributes "ibv_query_qp(3)";
            queues: a_shared_receive_queue_serves_many "10.2.9",
                the_limit_event_comes_once "10.2.9.3",
                the_next_completion_notifies "11.4.2.2",
                only_solicited_completions_notify "11.4.2.2",
                notifications_of_several_queues "11.4.2.2",
                a_queue_of_one_works_and_is_full_with_one "ibv_create_qp(3)",
                a_completion_queue_of_one_works "ibv_create_cq(3)",
                asynchronous_events_wake_their_descriptor "11.6.3",
                events_are_removed_with_their_objects "ibv_get_async_event(3)",
                notifications_are_removed_with_their_queue "ibv_get_cq_event(3)",
                poll_reports_an_overrun "11.6.3";
            misuse: remote_accesses_that_are_refused "9.9.3",
                operations_that_a_transport_does_not_have "9.4",
                numbers_out_of_range "11.2.4.2",
                receives_that_are_too_short "9.9.3";
            memory: every_kind_of_memory_carries_messages "10.6.3.1",
                mirrored_memory_wraps "10.6.3.1",
                files_are_written_through "10.6.3.1",
                invalid_sizes_of_memory_are_refused "Doorbell's contract of memory",
                accessors_panic_outside_the_region "Doorbell's contract of memory",
                a_written_word_is_seen_when_spun_on "Doorbell's contract of memory",
                a_window_opens_a_part_of_a_region_and_can_be_closed "10.6.7";
            lifetime: handles_keep_their_dependencies "Doorbell's contract of handles",
                a_region_dropped_under_a_send "10.10.3",
                a_region_dropped_under_a_receive "10.10.3",
                a_region_dropped_under_remote_access "10.6.7",
                a_region_dropped_while_it_is_read "10.10.3",
                a_queue_pair_destroyed_under_traffic "11.2.4.4",
                destroying_makes_room_for_others "11.2.4.4";
            threads: many_threads_share_a_device "Doorbell's contract of handles",
                many_threads_share_a_queue_pair "Doorbell's contract of handles",
                a_thousand_queue_pairs "Doorbell's contract of handles",
                connections_come_and_go "Doorbell's contract of handles"
        }
    };
}

#[macro_export]
macro_rules! provider {
    ($name:ident, $within:path, $open:path $(, #[$only:meta])?) => {
        mod $name {
            $crate::verbs_cases! { [$crate::provider] @tests $within, $open, ($(#[$only])?); }
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
    (@tests $within:path, $open:path, $only:tt; $($module:ident: $($test:ident $($rule:literal)?),+);+) => {
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
