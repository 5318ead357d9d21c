
# Fault plans between programs of perftest and rdma_rxe (runs after box.sh). The middlebox applies each plan to packets
# that arrive at it or leave it, so the plan strikes rxe as requester (client) and as responder (server).
plans=0
under_plan() {
    plan=$1; shift
    case "$plan" in *" "*) option=--fault ;; *) option=--fault-plan ;; esac
    plans=$((plans + 1))
    box_port=$((21010 + plans))
    ip netns exec other doorbell steer 192.0.2.1:21000 --perftest --bind 192.0.2.2 -p $box_port "$option" "$plan" --json \
        > /tmp/box 2> /tmp/box.said & box=$!
    wait_for_port $box_port in_other
    through_box "$@"
    if [ "$ghosts" ]; then
        sleep $ghosts
        through_box "$@"
    fi
    end_box
    grep -q "never fired" /tmp/box.said && fail "$plan, $*: $(cat /tmp/box.said)"
    grep -q '"node_failures": 0' /tmp/box || fail "$plan, $*: the node failed: $(cat /tmp/box /tmp/box.said)"
}
# rxe as requester: the box answers a gap with one NAK, and rxe sends again after lost acknowledgements and NAKs. An RNR
# NAK delays rxe, and an acknowledgement that arrives late changes nothing.
under_plan lost-first rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan lost-middle rxe ib_write_bw -n 100 -s 16000 -t 4
under_plan lost-last rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan corrupted-icrc rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan duplicate-requests rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan black-hole rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan 'drop direction=out opcode=ack nth=2' rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan 'drop opcode=request position=middle nth=1;drop direction=out opcode=nak nth=1' \
    rxe ib_write_bw -n 100 -s 16000 -t 4
under_plan 'drop direction=out opcode=read-response nth=2' rxe ib_read_lat -o 16 -n 100 -s 16000
under_plan 'drop direction=out opcode=atomic-response nth=2' rxe ib_atomic_lat -o 16 -n 100 -A FETCH_AND_ADD
under_plan 'corrupt direction=out opcode=ack nth=2 field=syndrome value=0x2c icrc=valid' \
    rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan 'delay direction=out opcode=ack nth=2 for=200ms' rxe ib_write_bw -n 2000 -s 16 -t 4
# rxe as responder: it answers a gap with one NAK, acknowledges duplicates again, repeats responses, and drops a packet
# with a wrong ICRC. The box sends again after lost acknowledgements and NAKs, and waits after an RNR NAK.
under_plan 'drop direction=out opcode=request position=first nth=1' soft ib_write_bw -n 100 -s 8000 -t 4
under_plan 'drop direction=out opcode=request position=middle nth=1' soft ib_write_bw -n 100 -s 16000 -t 4
under_plan 'drop direction=out opcode=request position=last nth=1' soft ib_write_bw -n 100 -s 8000 -t 4
under_plan 'drop direction=out opcode=request position=middle nth=1;drop opcode=nak nth=1' \
    soft ib_write_bw -n 100 -s 16000 -t 4
under_plan 'black-hole direction=out opcode=request nth=2 for=20ms' soft ib_write_bw -n 100 -s 8000 -t 4
under_plan lost-ack soft ib_write_bw -n 100 -s 8000 -t 4
under_plan rnr-then-success soft ib_write_bw -n 100 -s 8000 -t 4
under_plan late-ack soft ib_write_bw -n 100 -s 8000 -t 4
under_plan lost-read-response soft ib_read_lat -o 16 -n 100 -s 16000
under_plan atomic-replay soft ib_atomic_lat -o 16 -n 100 -A FETCH_AND_ADD
under_plan 'duplicate direction=out opcode=request nth=5..9' soft ib_write_bw -n 100 -s 8000 -t 4
under_plan 'duplicate direction=out opcode=read-request nth=5..9' soft ib_read_lat -o 16 -n 100 -s 16000
under_plan 'duplicate direction=out opcode=atomic-request nth=5..9' soft ib_atomic_lat -o 16 -n 100 -A FETCH_AND_ADD
under_plan 'corrupt direction=out opcode=write nth=3 field=icrc' soft ib_write_bw -n 100 -s 8000 -t 4
# The ghost reaches rxe after its connection has ended, and must not disturb the next connection.
ghosts=0.6
under_plan 'duplicate direction=out opcode=request nth=1 for=500ms' soft ib_write_bw -n 100 -s 8000 -t 4
ghosts=
# Plans of the device itself. The software RNIC applies them, and rxe is the peer.
on_device() {
    plan=$1 role=$2; shift 2
    plans=$((plans + 1))
    rm -f /tmp/journal
    faults="--fault-plan $plan --fault-journal /tmp/journal"
    "$role" "$@"
    faults=
    grep -q '"rule":1,' /tmp/journal || fail "$plan, $*: the plan never fired"
}
served() { pair serves "$@"; }
asked() { pair asks "$@"; }
# The program of the software RNIC must fail by itself: not by its time limit (124), and not by a signal (128 or more).
# Its server on rxe may wait for it without end, so the script ends the server.
failing() {
    for try in 1 2 3 4 5 6 7 8; do
        port=$((port + 1))
        timeout 300 "$@" -d rxe0 -x $gid -p $port > /tmp/server 2>&1 & server=$!
        wait_for_port $port
        in_other timeout 300 doorbell run $faults --bind 192.0.2.2 -- "$@" -p $port 192.0.2.1 > /tmp/client 2>&1
        client=$?
        { kill $server; wait $server; } 2> /dev/null
        # Try again if perftest could not measure the processor's clock.
        cat /tmp/client /tmp/server | grep -q "Correlation coefficient" || break
    done
    if [ $client = 0 ] || [ $client = 124 ] || [ $client -ge 128 ]; then
        fail "$plan, $*: the client does not fail by itself, its status is $client: $(cat /tmp/client)"
    fi
}
on_device port-flap asked ib_write_bw -n 500 -s 8000 -t 4
on_device slow-completion served ib_read_lat -o 16 -n 100 -s 16
on_device bad-completion failing ib_read_lat -o 16 -n 100 -s 16
on_device refused-post failing ib_read_lat -o 16 -n 100 -s 16
on_device qp-fatal-event failing ib_read_lat -o 16 -n 100 -s 16
# The PSNs of a connection wrap. perftest draws its PSNs, so `doorbell bench` is at both ends. $1 is the end that sends
# requests, and the other arguments are the faults of the software RNIC.
wraps() {
    sender=$1; shift
    plans=$((plans + 1))
    rm -f /tmp/journal
    own="doorbell bench bw -d rxe0 -x $gid --first-psn 16777210"
    soft="doorbell bench bw --bind 192.0.2.2 --first-psn 16777210 --fault-journal /tmp/journal"
    load="-n 100 -s 16000 -t 4 --verify"
    if [ $sender = rxe ]; then
        in_other timeout 300 $soft "$@" --listen 192.0.2.2 > /tmp/server 2>&1 & server=$!
        wait_for_port 18515 in_other
        timeout 300 $own $load 192.0.2.2 > /tmp/client 2>&1
    else
        timeout 300 $own --listen 192.0.2.1 > /tmp/server 2>&1 & server=$!
        wait_for_port 18515
        in_other timeout 300 $soft "$@" $load 192.0.2.1 > /tmp/client 2>&1
    fi
    client=$?
    wait $server
    [ $client$? = 00 ] || fail "PSN wrap, $sender sends: $(cat /tmp/client /tmp/server)"
    grep -q '"rule":1,.*"psn":0}' /tmp/journal || fail "PSN wrap, $sender sends: the plan never fired"
}
wraps rxe --fault-plan psn-wrap
wraps soft --fault 'drop direction=out opcode=request psn=0 nth=1'
pair serves ib_read_lat -o 16 -n 100 -s 16
echo "$plans fault plans, $failures failures"
[ $failures = 0 ]
