# What the scripts share.
failures=0
# Of both sides of each bench: one that listens without a token serves nobody on another address than loopback's.
export DOORBELL_TOKEN=a-secret-of-this-guest
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# Waits until somebody listens on a TCP port, as seen by what is put before a command.
wait_for_port() {
    wanted=$1 hex=$(printf ':%04X ' $1); shift
    for try in $(seq 2400); do
        "$@" cat /proc/net/tcp /proc/net/tcp6 | grep -q "$hex.* 0A " && return
        sleep 0.05
    done
    fail "nobody listens on $wanted"
}
# Writes what passes veth0 to a file for the host, until captured.
capture() {
    tcpdump -Z root -q -U -i veth0 -w /host/$1 udp port 4791 2> /tmp/tcpdump & tcpdump=$!
    for try in $(seq 600); do grep -q listening /tmp/tcpdump && break; sleep 0.1; done
}
captured() {
    sleep 1
    kill -INT $tcpdump
    wait $tcpdump
}
