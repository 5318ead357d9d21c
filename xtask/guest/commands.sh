# Runs the command on the kernel's RNIC, and checks its errors.

# Checks that a command succeeds and prints the given words.
prints() {
    words=$1; shift
    timeout 300 "$@" > /tmp/said 2>&1 || fail "$* ended with $?: $(cat /tmp/said)"
    grep -q "$words" /tmp/said || fail "$* does not print '$words': $(cat /tmp/said)"
}

# Checks that a command ends with the given status and prints the given words.
refuses() {
    status=$1 words=$2; shift 2
    timeout 300 "$@" > /tmp/said 2>&1
    ended=$?
    [ $ended = $status ] || fail "$* ended with $ended, not with $status: $(cat /tmp/said)"
    grep -q "$words" /tmp/said || fail "$* does not print '$words': $(cat /tmp/said)"
    echo "as expected: $(tail -1 /tmp/said)"
}

prints "rxe0: RNIC of this machine" doorbell devices
prints "::ffff:10.0.0.1 (RoCE v2), used" doorbell devices
doorbell devices 2>/dev/null
prints '"default_gid_index": 1' doorbell devices --json
prints "using rxe0" doorbell bench lat -s 16 -n 200
prints "using rxe0" doorbell bench bw -s 16,4096,65536 -n 500 --verify
for op in write read cas fetch-add request-response; do
    prints "system provider" doorbell bench bw -d rxe0 --op $op -n 500 -s 8 --verify
done
prints "system provider" doorbell bench bw -d rxe0 -q 4 -b -e -n 500 -s 100,10000
prints '"provider": "system"' doorbell bench bw -d rxe0 -n 500 -s 16 --json
prints "hw_counters/sent_pkts" doorbell counters --list
prints "rxe0" doorbell counters rxe0 --lines -n 1

refuses 1 "there is no RDMA device mlx5_9; there are: rxe0" doorbell bench bw -d mlx5_9 -n 10
refuses 1 "has no port 2: its ports are 1 to 1" doorbell bench bw -d rxe0 -i 2 -n 10
refuses 1 "has no GID 7 for RoCE v2; it has: 0 " doorbell bench bw -d rxe0 -x 7 -n 10
refuses 2 "applies only to doorbell0, the embedded software RNIC" doorbell bench bw -d rxe0 --fault drop=0.1
refuses 1 "4791" doorbell bench bw -d doorbell0 -n 10
mtu=$(cat /sys/class/net/dummy0/mtu)
ip link set dummy0 mtu 1500
refuses 1 "larger than this port's active MTU 1024" doorbell bench bw -d rxe0 -n 10 -m 4096
ip link set dummy0 mtu $mtu
ip link set dummy0 down
refuses 1 "is down, not active" doorbell bench bw -d rxe0 -n 10
ip link set dummy0 up
# A user without rights, who may lock only a little memory.
su nobody -s /bin/sh -c 'ulimit -l 64; PATH=/opt:/bin; doorbell bench bw -d rxe0 -n 10 -s 65536' > /tmp/said 2>&1
[ $? = 1 ] || fail "a small limit of locked memory is no failure"
grep -q "may lock 65536 B of memory" /tmp/said || fail "a small limit of locked memory: $(cat /tmp/said)"
# A user without access to the device.
chmod 600 /dev/infiniband/uverbs*
refuses 1 "cannot be opened: .* readable and writable for this user" \
    su nobody -s /bin/sh -c 'PATH=/opt:/bin; exec doorbell bench bw -d rxe0 -n 10'
chmod 666 /dev/infiniband/uverbs*
# An interface without IPv4, and then without any address: rxe's default GID is not usable.
ip address flush dev dummy0
ip address add fd00::1/64 dev dummy0 nodad
for try in $(seq 600); do doorbell devices 2>&1 | grep -q fd00::1 && break; sleep 0.1; done
prints "fd00::1 (RoCE v2), used" doorbell devices
prints "system provider" doorbell bench bw -d rxe0 -n 200 -s 16
refuses 1 "has no GID 7 for RoCE v2; it has: .* fd00::1 (RoCE v2)" doorbell bench bw -d rxe0 -x 7 -n 10
ip address flush dev dummy0
for try in $(seq 600); do doorbell devices 2>&1 | grep -q fd00::1 || break; sleep 0.1; done
refuses 1 "give the network interface an address, or choose another GID" doorbell bench bw -d rxe0 -n 10
libraries=/usr/lib/x86_64-linux-gnu
mv $libraries/libibverbs.so.1 /tmp/
refuses 1 "libibverbs cannot be loaded" doorbell bench bw -d rxe0 -n 10
# A library without symbols of libibverbs, in place of an old libibverbs without some of them.
cp $libraries/libgcc_s.so.1 $libraries/libibverbs.so.1
refuses 1 "too old: it lacks the function ibv_get_device_list" doorbell bench bw -d rxe0 -n 10
prints "libibverbs.so.1 is too old" doorbell devices
mv /tmp/libibverbs.so.1 $libraries/
rdma link delete rxe0
refuses 1 "knows no RDMA device" doorbell bench bw -d rxe0 -n 10
echo "$failures failures"
[ $failures = 0 ]
