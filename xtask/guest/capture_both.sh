# Captures a few packets that neither perftest nor `doorbell bench` sends, between two devices of rxe (runs after
# two_rxe.sh): UC and UD with immediate data, and WRITEs with immediate data.
export DOORBELL_TEST_DEVICE=rxe1 DOORBELL_TEST_PEER_DEVICE=rxe2
capture rxe-both.pcap
for case in immediate_data_and_invalidation unreliable_connections_carry_sends_and_writes \
    datagrams_bring_their_header inline_data_is_copied; do
    timeout 300 verbs --ignored --exact conformance::system::$case || fail "$case"
done
captured
echo "$failures failures"
[ $failures = 0 ]
