# Two devices of rdma_rxe as two hosts of a study (runs after two_rxe.sh). rxe's sockets and routes exist only in the
# first namespace, so the devices and their network stay there. The RDMA subsystem shares devices with all namespaces.
# The processes of the study run in separate namespaces, whose only network is that of the control connection.
rdma system show | grep -q "netns shared" || fail "RDMA devices are not shared: $(rdma system show)"
ip link add control0 type veth peer name control1
for end in 0 1; do
    ip netns add host$end
    ip link set control$end netns host$end
    ip -n host$end address add 198.51.100.$((end + 1))/24 dev control$end
    ip -n host$end link set control$end up
    ip -n host$end link set lo up
done
echo "two devices with a network between them, two namespaces"
set -- $(gid_of 192.0.2.1) $(gid_of 192.0.2.2)
# Threads are not pinned. A study of direct-write/latency with threads pinned to both processors once stopped, because a
# queue pair of rxe got no more packets from its peer. The cause is unknown.
ip netns exec host1 doorbell study -d rxe2 -x $2 --cpus none --listen 198.51.100.2 > /tmp/there 2>&1 & there=$!
wait_for_port 18515 ip netns exec host1
echo "host 1 listens"
ip netns exec host0 timeout 300 doorbell study --quick -d rxe1 -x $1 --cpus none --out /tmp/records wire/request-response \
    198.51.100.2 > /tmp/here 2>&1 || fail "a study on two hosts ended with $?: $(cat /tmp/there)"
cat /tmp/here
echo "host 1 is to end"
kill -TERM $there
{ wait $there; } 2> /dev/null
points=0
for record in /tmp/records/*.json; do
    for device in rxe1 rxe2; do
        grep -q "\"device\": *\"$device\"" $record || fail "$record does not name $device: $(head -c 4000 $record)"
    done
    points=$((points + 1))
done
[ $points = 2 ] || fail "$points points instead of 2"
echo "$points points between two hosts, $failures failures"
[ $failures = 0 ]
