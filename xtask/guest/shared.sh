# Shared functions of the scripts.
failures=0
# Token of both sides of each bench. Without a token, a listener accepts only clients on loopback.
export DOORBELL_TOKEN=a-secret-of-this-guest
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# Waits until a program listens on a TCP port. Further arguments are a prefix of the command that looks for it.
wait_for_port() {
    wanted=$1 hex=$(printf ':%04X ' $1); shift
    for try in $(seq 2400); do
        "$@" cat /proc/net/tcp /proc/net/tcp6 | grep -q "$hex.* 0A " && return
        sleep 0.05
    done
    fail "no program listens on port $wanted"
}
# Captures packets on veth0 to a file for the host, until `captured` is called.
capture() {
    tcpdump -Z root -q -U -i veth0 -w /host/$1 udp port 4791 2> /tmp/tcpdump & tcpdump=$!
    for try in $(seq 600); do grep -q listening /tmp/tcpdump && break; sleep 0.1; done
}
captured() {
    sleep 1
    kill -INT $tcpdump
    wait $tcpdump
}
