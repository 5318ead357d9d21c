# perftest, unmodified and with the same options, on rxe and on the software RNIC, one after the other in one
# guest; and our own bench over the provider `system` beside perftest on the same device. Over the cable
# (cable.sh comes before) both ends are software RNICs: rxe has its sockets in one namespace alone, so
# its own loopback is what they are held against.
rounds=${rounds:-3}
on_rxe() { pair_of "" "" "-d rxe0 -x $gid" 192.0.2.1 "$@"; }
on_soft() { pair_of "in_other doorbell run --" "in_other doorbell run --" "" 127.0.0.1 "$@"; }
across() {
    pair_of "doorbell run --udp-port 4792 --bind 192.0.2.1 --" "in_other doorbell run --udp-port 4792 --bind 192.0.2.2 --" \
        "" 192.0.2.1 "$@"
}
# Server's prefix, client's prefix, options of both, address; then the program.
pair_of() {
    server_prefix=$1 client_prefix=$2 options=$3 address=$4; shift 4
    port=$((port + 1))
    $server_prefix "$@" $options -p $port > /tmp/server 2>&1 & server=$!
    case $server_prefix in in_other*) wait_for_port $port in_other ;; *) wait_for_port $port ;; esac
    $client_prefix "$@" $options -p $port $address > /tmp/client 2>&1 || fail "$*: $(tail -2 /tmp/client)"
    wait $server
}
# The last column but for the rate (bw) or the median (lat) of the line that begins with the size.
rate() { awk -v size=$1 '$1 == size { print $5 }' /tmp/client; }
mib() { awk -v size=$1 '$1 == size { print $4 }' /tmp/client; }
median() { awk -v size=$1 '$1 == size { print $5 }' /tmp/client; }
say() { echo "$*" | tee -a /host/ratios.txt; }
cat /proc/version
for round in $(seq $rounds); do
    on_rxe ib_send_bw -s 16 -n 5000;        say "$round send_bw_16_rate_Mps rxe $(rate 16)"
    on_soft ib_send_bw -s 16 -n 20000;      say "$round send_bw_16_rate_Mps soft $(rate 16)"
    on_rxe ib_send_lat -s 16 -n 2000;       say "$round send_lat_16_us rxe $(median 16)"
    on_soft ib_send_lat -s 16 -n 2000;      say "$round send_lat_16_us soft $(median 16)"
    across ib_send_lat -s 16 -n 2000;       say "$round send_lat_16_us soft-over-veth $(median 16)"
    on_rxe ib_write_lat -s 16 -n 2000;      say "$round write_lat_16_us rxe $(median 16)"
    on_soft ib_write_lat -s 16 -n 2000;     say "$round write_lat_16_us soft $(median 16)"
    across ib_write_lat -s 16 -n 2000;      say "$round write_lat_16_us soft-over-veth $(median 16)"
    on_rxe ib_write_bw -s 65536 -n 500;     say "$round write_bw_65536_MiBps rxe $(mib 65536)"
    on_soft ib_write_bw -s 65536 -n 1000;   say "$round write_bw_65536_MiBps soft $(mib 65536)"
    on_rxe ib_write_bw -s 16 -n 5000 -t 64 -Q 1; say "$round write_bw_16_window_64_Mps perftest-on-rxe $(rate 16)"
    doorbell bench bw -d rxe0 -x $gid --op write -s 16 -n 5000 -t 64 2> /dev/null > /tmp/client
    say "$round write_bw_16_window_64_Mps bench-on-rxe $(awk '$1 == 16 { print $3 / 1e6 }' /tmp/client)"
done
echo "$failures failures"
[ $failures = 0 ]
