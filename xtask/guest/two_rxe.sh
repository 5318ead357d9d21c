# rxe1 and rxe2, two devices of rdma_rxe with a network between them.
gid_of() { timeout 30 doorbell devices 2>/dev/null | sed -n "s/.*GID \([0-9]*\) ::ffff:$1 .*/\1/p"; }

# A pair of veth with both ends in the first namespace, since the sockets of rxe exist only there. Normally, packets to
# a local address do not leave. These rules send such packets through the pair and accept them at its other end.
ip link add veth0 mtu 9000 type veth peer name veth1 mtu 9000
ip address add 192.0.2.1/32 dev veth0
ip address add 192.0.2.2/32 dev veth1
for end in 0 1; do
    echo 1 > /proc/sys/net/ipv4/conf/veth$end/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/veth$end/rp_filter
    ip link set veth$end up
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
hardware_address() { cat /sys/class/net/$1/address; }
ip neighbour add 192.0.2.2 lladdr $(hardware_address veth1) dev veth0 nud permanent
ip neighbour add 192.0.2.1 lladdr $(hardware_address veth0) dev veth1 nud permanent
ip route add 192.0.2.2 dev veth0 table 100
ip route add 192.0.2.1 dev veth1 table 101
ip rule add preference 10 to 192.0.2.2 oif veth0 lookup 100
ip rule add preference 10 to 192.0.2.1 oif veth1 lookup 101
ip rule add preference 20 lookup local
ip rule delete preference 0
rdma link add rxe1 type rxe netdev veth0
rdma link add rxe2 type rxe netdev veth1
for try in $(seq 600); do [ "$(gid_of 192.0.2.2)" ] && break; sleep 0.1; done
