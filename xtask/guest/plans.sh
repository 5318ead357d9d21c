
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
    end_box
    grep -q "never fired" /tmp/box.said && fail "$plan, $*: $(cat /tmp/box.said)"
    grep -q '"node_failures": 0' /tmp/box || fail "$plan, $*: the node failed: $(cat /tmp/box /tmp/box.said)"
}
# rxe as requester: the box answers a gap with a NAK, and rxe sends again after a lost acknowledgement.
under_plan lost-first rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan lost-last rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan black-hole rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan 'drop direction=out opcode=ack nth=2' rxe ib_write_bw -n 100 -s 8000 -t 4
under_plan 'drop direction=out opcode=read-response nth=2' rxe ib_read_lat -o 16 -n 100 -s 16000
# rxe as responder: it acknowledges duplicates again, repeats responses, and drops a packet with a wrong ICRC.
under_plan lost-ack soft ib_write_bw -n 100 -s 8000 -t 4
under_plan lost-read-response soft ib_read_lat -o 16 -n 100 -s 16000
under_plan atomic-replay soft ib_atomic_lat -o 16 -n 100 -A FETCH_AND_ADD
under_plan 'duplicate direction=out opcode=request nth=5..9' soft ib_write_bw -n 100 -s 8000 -t 4
under_plan 'corrupt direction=out opcode=write nth=3 field=icrc' soft ib_write_bw -n 100 -s 8000 -t 4
echo "$plans fault plans through a box, $failures failures"
[ $failures = 0 ]
