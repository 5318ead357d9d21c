# rdma_rxe at one end of a cable, and the software RNIC at the other end, each as client and as server.
#
# The kernel's sockets for port 4791 exist only in the first namespace, so the end of rxe is there.
ip netns add other || exit 1
ip link add veth0 mtu 9000 type veth peer name veth1 mtu 9000 netns other
ip address add 192.0.2.1/24 dev veth0
ip link set veth0 up
ip -n other address add 192.0.2.2/24 dev veth1
ip -n other link set veth1 up
ip -n other link set lo up
rdma link delete rxe0
rdma link add rxe0 type rxe netdev veth0
in_other() { ip netns exec other "$@"; }
# Index of the GID of the IPv4 address. The index is not fixed, because the link-local IPv6 address becomes a GID later.
gid=$(doorbell devices 2>/dev/null | sed -n 's/.*GID \([0-9]*\) ::ffff:192.0.2.1.*/\1/p')

port=20000
# Options of the software RNIC for faults.
faults=
# Runs a program at both ends. $1 is the role of rxe, `serves` or `asks`.
pair() {
    role=$1; shift
    port=$((port + 1))
    [ "$again" ] || tries=8
    again=
    own="$* -d rxe0 -x $gid -p $port"
    soft="doorbell run --stats $faults --bind 192.0.2.2 -- $* -p $port"
    if [ $role = serves ]; then
        timeout 300 $own > /tmp/server 2>&1 & server=$!
        wait_for_port $port
        in_other timeout 300 $soft 192.0.2.1 > /tmp/client 2>&1
    else
        in_other timeout 300 $soft > /tmp/server 2>&1 & server=$!
        wait_for_port $port in_other
        timeout 300 $own 192.0.2.2 > /tmp/client 2>&1
    fi
    client=$?
    wait $server
    served=$?
    if [ $client$served != 00 ]; then
        # Try again if perftest could not measure the processor's clock.
        if cat /tmp/client /tmp/server | grep -q "Correlation coefficient" && [ "$tries" != 0 ]; then
            tries=$((tries - 1)) again=yes
            pair $role "$@"
            return
        fi
        fail "rxe $role, $*: $client and $served"
        tail -n 8 /tmp/client /tmp/server
    fi
    # The software RNIC prints its counters that are not zero.
    cat /tmp/client /tmp/server | grep -q "rdma_unicast_packets" || fail "rxe $role, $*: no counters"
    cat /tmp/client /tmp/server | grep "icrc" && fail "rxe $role, $*: packets with a wrong ICRC"
}
