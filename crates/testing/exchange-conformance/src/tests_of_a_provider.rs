//! The list of all protocols and cases, and the tests and the table that it generates.

/// Calls a macro with all variants of the protocols, the cases for each variant, and the cases of single protocols.
#[macro_export]
macro_rules! exchange_cases {
    ([$($then:tt)+] $($first:tt)*) => {
        $($then)+! { $($first)*
            {
                send_receive: SendReceive;
                direct_read_unfenced: DirectRead::default();
                direct_read_fenced: DirectRead { fence: Fence::ReadCompletion, ..DirectRead::default() };
                direct_read_fenced_awaited:
                    DirectRead { fence: Fence::AcknowledgementCompletion, ..DirectRead::default() };
                direct_read_unfenced_send: DirectRead { acknowledge: Acknowledge::Send, ..DirectRead::default() };
                direct_read_fenced_send:
                    DirectRead { fence: Fence::ReadCompletion, acknowledge: Acknowledge::Send, ..DirectRead::default() };
                direct_write: DirectWrite::default();
                direct_write_each: DirectWrite { grants: Grants::Each };
                buffered_write_immediate_send: BufferedWrite { notification: Immediate, acknowledge: Send };
                buffered_write_immediate_read: BufferedWrite { notification: Immediate, acknowledge: Read };
                buffered_write_tail_send: BufferedWrite { notification: TailOffset, acknowledge: Send };
                buffered_write_tail_read: BufferedWrite { notification: TailOffset, acknowledge: Read };
                buffered_write_reverse_send: BufferedWrite { notification: Reverse, acknowledge: Send };
                buffered_write_reverse_read: BufferedWrite { notification: Reverse, acknowledge: Read };
                shared_write: SharedWrite::default();
                shared_write_each: SharedWrite { reserves: Reserves::Each };
                buffered_read: BufferedRead;
            }
            {
                every_length_arrives_in_order_and_intact, both_directions_at_once, uneven_ends,
                a_long_stream_wraps_every_index, loss_is_not_seen, a_stopped_receiver_causes_back_pressure,
                poll_reports_the_end_of_back_pressure, memory_of_the_program_is_sent_without_copying,
                readers_receive_messages_from_the_same_memory,
                goodbye_and_death_are_distinguished, goodbye_is_sent_while_the_peer_sends, a_quiet_connection_lives,
                the_last_goodbye_is_acknowledged, a_sleeping_receiver_is_woken_for_each_message;
                a_held_message_is_not_overwritten_after_newer_ones_are_freed,
                a_send_queue_takes_all_that_a_window_allows, two_peers_out_of_credit_free_each_other,
                a_slow_sender_delays_and_loses_nothing
            }
            {
                direct_read: the_receiver_places_messages_by_application_data, a_message_lands_in_a_file,
                    a_slow_message_blocks_only_beyond_its_window, many_readers_pull_the_same_memory,
                    reading_freed_memory_of_the_sender_fails, ends_of_different_protocols_do_not_connect,
                    a_fenced_read_delays_later_messages_and_loses_none,
                    messages_arrive_with_one_completion_per_message;
                grants: a_peer_with_too_small_buffers_is_rejected
            }
        }
    };
}

/// Generates the whole suite as tests of a provider, in a module named `suite`. The tests run the functions of the
/// table of cases, so that no suite compiles the cases anew.
#[macro_export]
macro_rules! exchange_suite {
    ($provider:expr) => {
        mod suite {
            $crate::exchange_cases! { [$crate::exchange_suite] @all $provider; }
        }
    };
    (@all $provider:expr; { $($name:ident: $protocol:expr;)+ } $cases:tt { $($module:ident: $($case:ident),+);+ }) => {
        $(
            mod $name {
                $crate::exchange_suite! { @cases $provider, $name; $cases }
            }
        )+
        $(
            mod $module {
                $crate::exchange_suite! { @tests $provider, $module; $($case),+ }
            }
        )+
    };
    (@cases $provider:expr, $name:ident; { $($case:ident),+; $($known:ident),+ }) => {
        $crate::exchange_suite! { @tests $provider, $name; $($case),+, $($known),+ }
    };
    (@tests $provider:expr, $group:ident; $($case:ident),+) => {
        $(
            #[test]
            fn $case() {
                $crate::set_provider($provider);
                $crate::run(concat!(stringify!($group), "/", stringify!($case)));
            }
        )+
    };
}
