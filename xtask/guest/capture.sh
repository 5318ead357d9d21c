# Captures a few packets of every operation over the cable (runs after cable.sh), as data for tests.
#
# The tests replay both sides, so the cable must carry single packets. With this setting, the kernel splits segmented
# sends of the software RNIC before the cable.
in_other ip link set veth1 gso_max_segs 1
capture rxe.pcap
for role in serves asks; do
    pair $role ib_send_bw -n 5 -s 16
    pair $role ib_send_bw -n 5 -s 2500 -m 1024
    pair $role ib_write_bw -n 5 -s 2501 -m 1024
    pair $role ib_read_bw -o 16 -n 5 -s 2502 -m 1024
    pair $role ib_atomic_bw -o 16 -n 5 -A FETCH_AND_ADD
    pair $role ib_atomic_bw -o 16 -n 5 -A CMP_AND_SWAP
    pair $role ib_send_bw -n 5 -s 1500 -m 512 -c UC
    pair $role ib_write_bw -n 5 -s 1501 -m 512 -c UC
    pair $role ib_send_bw -n 5 -s 100 -c UD
    pair $role ib_send_lat -n 5 -s 700 -m 256
    pair $role ib_write_bw -n 5 -s 64
done
# Immediate data, and requests of both sides in one connection.
timeout 300 doorbell bench bw -d rxe0 -x $gid --listen 192.0.2.1 > /tmp/server 2>&1 & server=$!
wait_for_port 18515
in_other timeout 300 doorbell bench bw --bind 192.0.2.2 -n 4 -t 4 -s 600 -m 256 -b 192.0.2.1 > /tmp/client 2>&1 ||
    fail "bench: $(cat /tmp/client)"
wait $server || fail "bench, rxe: $(cat /tmp/server)"
captured

# With loss. Packets of rxe are dropped before the point of capture, and packets to rxe after this point. The capture
# therefore has all packets of the software RNIC, and the packets of rxe that arrived.
capture rxe-loss.pcap
tc qdisc add dev veth0 root netem loss 10%
tc qdisc add dev veth0 handle ffff: ingress
tc filter add dev veth0 parent ffff: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff \
    action pass random determ drop 9
for role in serves asks; do
    pair $role ib_send_bw -n 8 -s 2500 -m 1024
    pair $role ib_write_bw -n 8 -s 2501 -m 1024
    pair $role ib_read_bw -o 16 -n 8 -s 2502 -m 1024
    pair $role ib_atomic_bw -o 16 -n 8 -A FETCH_AND_ADD
done
captured
tc qdisc del dev veth0 root
tc qdisc del dev veth0 ingress
echo "$failures failures"
[ $failures = 0 ]
