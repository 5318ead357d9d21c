# rdma_rxe is the memory node behind a middlebox (runs after cable.sh). The middlebox is at the other end of the cable.
# Clients are the software RNIC at a second address of that end, and rxe itself. The kernel must report no error.
ip -n other address add 192.0.2.3/24 dev veth1
dmesg -c > /dev/null
counted=/sys/class/infiniband/rxe0/ports/1/hw_counters
# Prints the error counters of rxe. Duplicate and reordered requests and retransmissions of rxe do not count as errors,
# because they are normal in a slow guest with two processors. Counted apart: NAKs of requests that arrived ahead of a
# lost one.
errors() { (cd $counted && grep . *_err link_downed | grep -vE "^(completer_retry_err|rcvd_seq_err):"); }
naks_in() { cat $counted/rcvd_seq_err; }
naks_out=0
# Adds the NAKs that the box sent.
count_naks() { naks_out=$((naks_out + $(sed -n 's/.*"naks_out": \([0-9]*\).*/\1/p' /tmp/box))); }
naks_before=$(naks_in)
errors > /tmp/errors-before

# perftest. Its servers on rxe listen at one port, one after the other, behind one middlebox.
ip netns exec other doorbell steer 192.0.2.1:21000 --perftest --bind 192.0.2.2 -p 21001 --json > /tmp/box 2> /tmp/box.said &
box=$!
box_port=21001
wait_for_port $box_port in_other
programs=0
through_box() {
    client=$1; shift
    for try in 1 2 3 4 5 6 7 8; do
        timeout 300 "$@" -d rxe0 -x $gid -p 21000 > /tmp/server 2>&1 & server=$!
        wait_for_port 21000
        if [ $client = rxe ]; then
            timeout 300 "$@" -d rxe0 -x $gid -p $box_port 192.0.2.2 > /tmp/client 2>&1
        else
            in_other timeout 300 doorbell run --bind 192.0.2.3 -- "$@" -p $box_port 192.0.2.2 > /tmp/client 2>&1
        fi
        asked=$?
        wait $server
        served=$?
        # Try again if perftest could not measure the processor's clock.
        cat /tmp/client /tmp/server | grep -q "Correlation coefficient" || break
    done
    programs=$((programs + 1))
    [ $asked$served = 00 ] ||
        fail "$client, through a box, $*: $asked and $served: $(tail -n 40 /tmp/client /tmp/server; cat /tmp/box.said)"
}
for client in soft rxe; do
    # rxe sends all requests at once, so these requests must fit into the socket buffer of the middlebox.
    through_box $client ib_write_bw -n 200 -s 8000 -t 4 -q 2
    through_box $client ib_read_lat -o 16 -n 200 -s 16
    through_box $client ib_atomic_bw -o 16 -n 200 -A FETCH_AND_ADD
    through_box $client ib_atomic_lat -o 16 -n 200 -A CMP_AND_SWAP
done
end_box() { kill -TERM $box; { wait $box; } 2> /dev/null; }
end_box
for name in refused node_failures damaged unexpected foreign unparsed; do
    grep -q "\"$name\": 0" /tmp/box || fail "the box in front of perftest: $name is not 0: $(cat /tmp/box /tmp/box.said)"
done
grep -E '"(requests|to_node|to_node_again|duplicates)"' /tmp/box
count_naks

# The store: memory node, metadata service and clients are processes on rxe. All clients write one key, so that also in
# a slow guest a CAS meets an old node, and the middlebox steers it.
for strategy in steered steered-write; do
    timeout 300 doorbell far verify --strategy $strategy -d rxe0 -x $gid --through 192.0.2.2:21002 --node-at 192.0.2.1:21003 \
        --clients 2 --keys 1 -t 4 --writes 70 -D 1s --no-kill --json > /tmp/store 2> /tmp/store.said & store=$!
    wait_for_port 21003
    # The store prints the command that starts its middlebox.
    ip netns exec other doorbell $(sed -n 's/.* now: doorbell //p' /tmp/store.said) --bind 192.0.2.2 > /tmp/box 2>&1 & box=$!
    wait $store || fail "$strategy on rxe: $(cat /tmp/store /tmp/store.said /tmp/box)"
    grep -q '"linearizable": true' /tmp/store || fail "$strategy on rxe: $(cat /tmp/store)"
    end_box
    count_naks
    grep -q '"cas_converted": [1-9]' /tmp/box || fail "$strategy on rxe: no CAS was converted to a WRITE: $(cat /tmp/box)"
    grep -E '"(operations|requests|to_node|to_node_again|cas_converted|cas_steered|reads_steered)"' /tmp/store /tmp/box |
        tee -a /tmp/stores
done
grep -q '"cas_steered": [1-9]' /tmp/stores || fail "the store on rxe: no CAS was steered"

errors > /tmp/errors-after
cmp /tmp/errors-before /tmp/errors-after ||
    fail "rxe counts errors: $(diff /tmp/errors-before /tmp/errors-after | grep '[<>]' | tr '\n' ' ')"
naks=$(($(naks_in) - naks_before))
[ $naks -le $naks_out ] || fail "rxe counts $naks NAKs, and the boxes sent $naks_out"
dmesg > /tmp/dmesg
grep -iE "rxe|infiniband|icrc|warn|bug" /tmp/dmesg && fail "the kernel has logged an error"
echo "$programs programs of perftest through a box, $failures failures"
[ $failures = 0 ]
