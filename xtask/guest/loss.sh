# The suites over a network that loses one packet in a hundred, both ways (two_rxe.sh comes before).
for end in 0 1; do tc qdisc add dev veth$end root netem loss 1% || fail "no loss"; done
export DOORBELL_TEST_DEVICE=rxe1 DOORBELL_TEST_PEER_DEVICE=rxe2 DOORBELL_MESSAGES=$messages
# What passed, and in what the kernel departs, go to the test run's output.
suite() {
    "$@" --test-threads=1 --show-output | tee /tmp/suite
    grep -q "^test result: ok. [1-9]" /tmp/suite || fail "$*"
}
suite exchange loss_is_not_seen
# Nobody sends a second time what was lost of these.
suite verbs --ignored system:: --skip unreliable --skip datagram
for end in 0 1; do
    tc -s qdisc show dev veth$end | grep "dropped [1-9]" || fail "veth$end lost nothing"
done
echo "$failures failures"
[ $failures = 0 ]
