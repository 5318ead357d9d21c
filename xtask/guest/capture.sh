# A few packets of every operation, over the cable (cable.sh comes before), for the tests' data.
tcpdump -Z root -q -U -i veth0 -w /host/rxe.pcap udp port 4791 2> /tmp/tcpdump &
tcpdump=$!
for try in $(seq 100); do grep -q listening /tmp/tcpdump && break; sleep 0.1; done
for role in serves asks; do
    pair $role ib_send_bw -n 5 -s 16
    pair $role ib_send_bw -n 5 -s 2500 -m 1024
    pair $role ib_write_bw -n 5 -s 2501 -m 1024
    pair $role ib_read_bw -o 16 -n 5 -s 2502 -m 1024
    pair $role ib_atomic_bw -o 16 -n 5 -A FETCH_AND_ADD
    pair $role ib_atomic_bw -o 16 -n 5 -A CMP_AND_SWAP
    pair $role ib_send_bw -n 5 -s 100 -c UD
done
sleep 1
kill -INT $tcpdump
wait $tcpdump
[ $failures = 0 ]
