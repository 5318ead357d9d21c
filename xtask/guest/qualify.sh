# Qualifies rdma_rxe (runs after two_rxe.sh): the suites on rxe0, whose packets loop back, and a study with captures from
# rxe1 to rxe2. The page with the deviations goes to the host.
export DOORBELL_MESSAGES=500
# The guest has no name of its own, and records state it.
echo private-name > /proc/sys/kernel/hostname
archive=/tmp/qualified.tar
# Runs a qualification, and unpacks its archive into the current directory.
qualify() {
    rm -rf $archive doorbell-qualification
    timeout 700 doorbell qualify --out $archive "$@" > /tmp/page 2> /tmp/said || fail "qualify $* ended with $?: $(cat /tmp/said)"
    tar -xf $archive || fail "qualify $*: no archive"
    # Addresses of the guest, in text and as GIDs, and its name.
    grep -rnE "10\.0\.0\.1|192\.0\.2\.|ffff:0a00|ffff:c000|([0-9a-f]{2}:){5}|private-name" doorbell-qualification &&
        fail "qualify $*: the archive has an address or a name"
    cat /tmp/page
}

qualify -d rxe0 --only doctor,verbs
cp /tmp/page /host/rdma_rxe.md
grep -q "^| verbs | done |" /tmp/page || fail "the suite of verbs: $(cat /tmp/page)"
grep -q "^| IBTA Vol 1, " /tmp/page || fail "rxe has no deviation"
result=doorbell-qualification/qualification.json
grep '"outcome": "[^p]' $result && fail "a case did not pass: $(cat /tmp/said)"
[ $(grep -c '"outcome": "passed"' $result) -gt 60 ] || fail "cases are missing: $(cat $result)"

qualify -d rxe0 --only exchange --cases every_length
grep -q "^| exchange | done | 17 of 17 cases passed" /tmp/page || fail "the suite of message connections: $(cat /tmp/page)"

set -- $(gid_of 192.0.2.1) $(gid_of 192.0.2.2)
timeout 600 doorbell study -d rxe2 -x $2 --cpus none --listen 127.0.0.1 > /tmp/there 2>&1 & there=$!
wait_for_port 18515
qualify -d rxe1 -x $1 --only study,captures --experiments wire/request-response 127.0.0.1
for part in study captures; do
    grep -q "^| $part | done |" /tmp/page || fail "$part: $(cat /tmp/page /tmp/said /tmp/there)"
done
kill -TERM $there
{ wait $there; } 2> /dev/null
echo "$failures failures"
[ $failures = 0 ]
