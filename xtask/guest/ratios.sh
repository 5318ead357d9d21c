# Measures unmodified perftest with the same options on rxe and on the software RNIC, and `doorbell bench` on the
# provider `system` beside perftest on rxe. All cases run in turns in one guest, $rounds times. A line of /host/raw.txt
# has round, measurement, series and figure. Runs after two_rxe.sh.

# A network for software RNICs like that between rxe1 and rxe2. Each RNIC has a namespace, as on two machines.
for side in one two; do ip netns add $side; ip -n $side link set lo up; done
ip -n one link add veth0 mtu 9000 type veth peer name veth0 mtu 9000 netns two
ip -n one address add 192.0.2.1/24 dev veth0
ip -n two address add 192.0.2.2/24 dev veth0
for side in one two; do ip -n $side link set veth0 up; done

port=20000
# Runs a program at both ends, with the prefix and the options of each end. $host is the server's address.
pair() {
    for try in 1 2 3 4 5 6 7 8; do
        port=$((port + 1))
        $server_prefix "$@" $server_options -p $port > /tmp/server 2>&1 & server=$!
        wait_for_port $port $server_namespace
        $client_prefix "$@" $client_options -p $port $host > /tmp/client 2>&1
        client=$?
        wait $server
        served=$?
        # Try again if perftest could not measure the processor's clock, or not exactly.
        cat /tmp/client /tmp/server | grep -qw "Correlation coefficient\|inf" && continue
        [ $client$served = 00 ] && return
        break
    done
    fail "$*: $(tail -n 3 /tmp/client /tmp/server)"
    : > /tmp/client
}
rxe_loopback() {
    server_namespace= server_prefix="timeout 300" client_prefix="timeout 300" host=127.0.0.1
    server_options="-d rxe0 -x $(gid_of 10.0.0.1)"
    client_options=$server_options
    pair "$@"
}
rxe_veth() {
    server_namespace= server_prefix="timeout 300" client_prefix="timeout 300" host=127.0.0.1
    server_options="-d rxe1 -x $(gid_of 192.0.2.1)"
    client_options="-d rxe2 -x $(gid_of 192.0.2.2)"
    pair "$@"
}
soft_loopback() {
    server_namespace="ip netns exec one" host=127.0.0.1 server_options= client_options=
    server_prefix="ip netns exec one timeout 300 doorbell run --"
    client_prefix=$server_prefix
    pair "$@"
}
soft_veth() {
    server_namespace="ip netns exec one" host=192.0.2.1 server_options= client_options=
    server_prefix="ip netns exec one timeout 300 doorbell run --bind 192.0.2.1 --"
    client_prefix="ip netns exec two timeout 300 doorbell run --bind 192.0.2.2 --"
    pair "$@"
}
# Prints a column of perftest's line for a size.
column() { awk -v size=$1 -v column=$2 '$1 == size && $column + 0 > 0 { print $column + 0 }' /tmp/client; }
say() { [ "$4" ] && echo "$*" | tee -a /host/raw.txt; }
bench() { doorbell bench bw -d rxe0 -x $(gid_of 10.0.0.1) "$@" 2> /tmp/complaints > /tmp/client || fail "bench $*: $(cat /tmp/complaints)"; }

# Check that packets of rxe pass the pair of veth: its counter must grow by at least the number of messages.
passed() { cat /sys/class/net/veth0/statistics/tx_packets; }
before=$(passed)
rxe_veth ib_send_lat -s 16 -n 100
[ $(($(passed) - before)) -ge 100 ] || fail "packets of rxe do not pass the pair of veth"

for round in $(seq $rounds); do
    for path in loopback veth; do
        for device in rxe soft; do
            ${device}_$path ib_send_lat -s 16 -n 1000
            say $round send_lat_16_$path $device $(column 16 5)
            ${device}_$path ib_write_lat -s 16 -n 1000
            say $round write_lat_16_$path $device $(column 16 5)
            ${device}_$path ib_send_bw -s 16 -n 50000
            say $round send_bw_16_$path $device $(column 16 5)
            ${device}_$path ib_write_bw -s 65536 -n 1000
            say $round write_bw_65536_$path $device $(column 65536 4)
        done
    done
    # Windows of 64, a completion for each request, no inline data.
    for batch in 1 8; do
        rxe_loopback ib_write_bw -s 16 -n 100000 -t 64 -Q 1 -l $batch
        say $round write_16_batch_$batch perftest $(column 16 5)
        bench --op write -s 16 -n 100000 -t 64 -I 0 -l $batch
        say $round write_16_batch_$batch bench $(awk '$1 == 16 { print $3 / 1e6 }' /tmp/client)
        rxe_loopback ib_send_bw -s 16 -n 100000 -t 64 -r 128 -Q 1 -l $batch
        say $round send_16_batch_$batch perftest $(column 16 5)
        bench --op send -s 16 -n 100000 -t 64 -I 0 -l $batch
        say $round send_16_batch_$batch bench $(awk '$1 == 16 { print $3 / 1e6 }' /tmp/client)
    done
done
cat /proc/version > /host/kernel.txt
echo "$failures failures"
[ $failures = 0 ]
