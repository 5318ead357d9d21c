# perftest and `doorbell bench` over the cable (runs after cable.sh), with all path MTUs, and with loss.
all_operations() {
    for role in serves asks; do
        pair $role ib_send_bw -n $1 -s 16
        pair $role ib_write_bw -n $1 -s 65536
        pair $role ib_read_bw -o 16 -n $1 -s 65536
        pair $role ib_atomic_bw -o 16 -n $1 -A FETCH_AND_ADD
        pair $role ib_atomic_bw -o 16 -n $1 -A CMP_AND_SWAP
        pair $role ib_send_bw -n $1 -s 1024 -c UD
        pair $role ib_send_lat -n $1 -s 16
        pair $role ib_write_lat -n $1 -s 16
        pair $role ib_read_lat -o 16 -n $1 -s 16
    done
}

# Runs `doorbell bench`, which checks the payload.
bench() {
    for role in serves asks; do
        if [ $role = serves ]; then
            timeout 300 doorbell bench bw -d rxe0 -x $gid --listen 192.0.2.1 > /tmp/server 2>&1 & server=$!
            wait_for_port 18515
            in_other timeout 300 doorbell bench bw --bind 192.0.2.2 "$@" --verify --json 192.0.2.1 > /tmp/client 2>&1
        else
            in_other timeout 300 doorbell bench bw --bind 192.0.2.2 --listen 192.0.2.2 > /tmp/server 2>&1 & server=$!
            wait_for_port 18515 in_other
            timeout 300 doorbell bench bw -d rxe0 -x $gid "$@" --verify --json 192.0.2.2 > /tmp/client 2>&1
        fi
        [ $? = 0 ] || fail "bench $*, rxe $role, client: $(cat /tmp/client)"
        wait $server || fail "bench $*, rxe $role, server: $(cat /tmp/server)"
        # The software RNIC is one of the two ends. Check its counter.
        wrong=$(sed -n 's/.*"rx_icrc_encapsulated": \([0-9]*\).*/\1/p' /tmp/client | sort -u)
        [ "$wrong" = 0 ] || fail "bench $*, rxe $role: packets with a wrong ICRC, or none were counted: $wrong"
    done
}

all_operations 200
# `bench` below also runs the path MTUs between these.
for mtu in 256 4096; do
    for role in serves asks; do
        pair $role ib_send_bw -n 50 -s 20000 -m $mtu
        pair $role ib_write_bw -n 50 -s 20000 -m $mtu
        pair $role ib_read_bw -o 16 -n 50 -s 20000 -m $mtu
    done
done
for mtu in 256 512 1024 2048 4096; do
    bench -n 50 -s 20000 -m $mtu
    for op in write read; do bench -n 50 -s 20000 -m $mtu --op $op; done
done
# The same operations with loss of one packet in a hundred in each direction.
tc qdisc add dev veth0 root netem loss 1%
in_other tc qdisc add dev veth1 root netem loss 1%
for role in serves asks; do
    pair $role ib_send_bw -n 500 -s 5000
    pair $role ib_write_bw -n 500 -s 5000
    pair $role ib_read_bw -o 16 -n 500 -s 5000
    pair $role ib_atomic_bw -o 16 -n 200 -A FETCH_AND_ADD
done
bench -n 500 -s 16,5000
for op in write read; do bench -n 300 -s 5000 --op $op; done
bench -n 200 --op fetch-add
for lossy in "" in_other; do
    $lossy tc -s qdisc show | grep "dropped [1-9]" || fail "no packet was lost"
done
tc qdisc del dev veth0 root
in_other tc qdisc del dev veth1 root
bench -n 500 -s 16,5000,65536
bench -n 500 -s 16,5000 -b
for op in write read; do bench -n 300 -s 16,65536 --op $op; done
bench -n 300 --op fetch-add
bench -n 300 --op cas
# Transports without acknowledgements: lost messages are counted, and arrived messages are intact. Over UD a message is
# one packet.
bench -n 500 -s 16,5000 --transport uc
bench -n 500 -s 16,1024 --transport ud
# A peer with another MTU. Both ends use the smaller MTU, and both ends reject a larger one.
ip link set veth0 mtu 1500
bench -n 100 -s 5000
grep -q '"mtu": 1024' /tmp/client || fail "a path MTU that fits both: $(cat /tmp/client)"
timeout 300 doorbell bench bw -d rxe0 -x $gid --listen 192.0.2.1 > /tmp/server 2>&1 & server=$!
wait_for_port 18515
in_other timeout 300 doorbell bench bw --bind 192.0.2.2 -n 10 -m 4096 192.0.2.1 > /tmp/client 2>&1
client=$?
wait $server
[ $client$? = 11 ] || fail "a path MTU that is too large for the peer: $client at the client"
for end in client server; do
    grep -q "path MTU 4096 is larger than this port's active MTU 1024" /tmp/$end || fail "$end: $(cat /tmp/$end)"
done
ip link set veth0 mtu 9000
# Neither end received a packet with a wrong ICRC. `pair` checks the counter of the software RNIC.
dmesg | grep -i "bad icrc" && fail "rdma_rxe found wrong ICRCs"
echo "$port programs of perftest (from 20001 on), $failures failures"
[ $failures = 0 ]
