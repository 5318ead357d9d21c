# A few packets of what neither perftest nor our bench sends, between two devices of rxe (two_rxe.sh comes before):
# UC and UD with immediate data, and WRITEs with it.
export DOORBELL_TEST_DEVICE=rxe1 DOORBELL_TEST_PEER_DEVICE=rxe2
capture rxe-both.pcap
for case in immediate_data_and_invalidation unreliable_connections_carry_sends_and_writes \
    datagrams_bring_their_header inline_data_is_copied; do
    timeout 300 verbs --ignored --exact system::$case || fail "$case"
done
captured
echo "$failures failures"
[ $failures = 0 ]
