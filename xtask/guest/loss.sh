# Runs the suites over a network that loses one packet in a hundred in each direction (runs after two_rxe.sh).
# Before that, runs `doorbell bench` without loss. There are more receives than messages, so all messages arrive.
for transport in uc ud; do
    timeout 300 doorbell bench bw -d rxe2 -x $(gid_of 192.0.2.2) --listen 192.0.2.2 > /tmp/server 2>&1 & server=$!
    wait_for_port 18515
    timeout 300 doorbell bench bw -d rxe1 -x $(gid_of 192.0.2.1) -n 300 -s 16,1024 -r 2048 --transport $transport --verify \
        --json 192.0.2.2 > /tmp/client 2>&1 || fail "bench over $transport, client: $(cat /tmp/client)"
    wait $server || fail "bench over $transport, server: $(cat /tmp/server)"
    lost=$(sed -n 's/.*"lost": \([0-9]*\).*/\1/p' /tmp/client | sort -u)
    [ "$lost" = 0 ] || fail "bench over $transport lost messages, or has no count of them: $(cat /tmp/client)"
done
for end in 0 1; do tc qdisc add dev veth$end root netem loss 1% || fail "no loss"; done
export DOORBELL_TEST_DEVICE=rxe1 DOORBELL_TEST_PEER_DEVICE=rxe2 DOORBELL_MESSAGES=$messages
# Runs a suite, and prints its passed tests and the deviations of the kernel.
suite() {
    "$@" --test-threads=1 --show-output | tee /tmp/suite
    grep -q "^test result: ok. [1-9]" /tmp/suite || fail "$*"
}
suite exchange loss_is_not_seen
# Unreliable transports do not retransmit, so their tests are skipped.
suite verbs --ignored conformance::system:: --skip unreliable --skip datagram
for end in 0 1; do
    tc -s qdisc show dev veth$end | grep "dropped [1-9]" || fail "veth$end lost nothing"
done
echo "$failures failures"
[ $failures = 0 ]
