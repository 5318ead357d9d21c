# Captures a few packets that neither perftest nor `doorbell bench` sends, between two devices of rxe (runs after
# two_rxe.sh): UC and UD with immediate data, WRITEs with immediate data, and RNR NAKs.
export DOORBELL_TEST_DEVICE=rxe1 DOORBELL_TEST_PEER_DEVICE=rxe2
capture rxe-both.pcap
for case in immediate_data_and_invalidation unreliable_connections_carry_sends_and_writes \
    datagrams_bring_their_header inline_data_is_copied; do
    timeout 300 verbs --ignored --exact conformance::system::$case || fail "$case"
done
captured

# RNR NAKs, each of which a later receive ends.
capture rxe-rnr.pcap
timeout 300 verbs --ignored --exact conformance::system::rnr_retries_wait_for_a_receive || fail "RNR NAKs"
captured
# Opcode RC Acknowledge, and the class of RNR NAKs in the syndrome.
tcpdump -Z root -r /host/rxe-rnr.pcap 'udp[8] = 0x11 and udp[20] & 0xe0 = 0x20' 2> /dev/null | grep -q . ||
    fail "the capture has no RNR NAK"
echo "$failures failures"
[ $failures = 0 ]
