# What the scripts share.
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# Waits until somebody listens on a TCP port, as seen by what is put before a command.
wait_for_port() {
    wanted=$1 hex=$(printf ':%04X ' $1); shift
    for try in $(seq 400); do
        "$@" cat /proc/net/tcp /proc/net/tcp6 | grep -q "$hex.* 0A " && return
        sleep 0.05
    done
    fail "nobody listens on $wanted"
}
