# Lists the kernel's files of rxe, and the files of the software RNIC that programs see beside them. Each line has a
# path, a tab, and the kind or value. The host compares the lists. dash reads the files, since it is linked
# dynamically, unlike busybox.
cat > /tmp/walk <<'END'
walk() {
    for entry in "$1"/*; do
        name=$2/${entry##*/}
        case $name in
            # A table of GIDs has hundreds of entries. List only the first four entries.
            */gids/[4-9] | */gids/??* | */types/[4-9] | */types/??* | */ndevs/[4-9] | */ndevs/??*) continue ;;
        esac
        if [ -L "$entry" ]; then
            printf '%s\tlink\n' "$name"
        elif [ -d "$entry" ]; then
            printf '%s\tfolder\n' "$name"
            walk "$entry" "$name"
        elif [ -c "$entry" ]; then
            printf '%s\tcharacter device\n' "$name"
        elif [ -f "$entry" ]; then
            value=
            { read -r value < "$entry"; } 2> /dev/null
            printf '%s\tvalue %s\n' "$name" "$value"
        fi
    done
}
walk /sys/class/infiniband/$1/ device
walk /sys/class/infiniband_verbs/$2/ verbs
for entry in /sys/class/infiniband/$1 /sys/class/infiniband_verbs/$2; do
    [ -L $entry ] && printf '%s\tlink\n' "${entry%/*}"
done
read -r value < /sys/class/infiniband_verbs/abi_version && printf '/sys/class/infiniband_verbs/abi_version\tvalue %s\n' "$value"
for entry in $2 rdma_cm; do
    [ -c /dev/infiniband/$entry ] && printf '/dev/infiniband/%s\tcharacter device\n' "${entry%[0-9]}"
done
END
dash /tmp/walk rxe0 uverbs0 > /host/rxe.txt
# The socket of rxe uses the port of RoCE on all addresses, so the software RNIC needs another port. uverbs0 is rxe.
own="doorbell run --udp-port 5000 --"
$own dash /tmp/walk doorbell0 uverbs1 > /host/own.txt
# Both devices are visible, and the kernel's device looks the same as without the software RNIC.
$own dash -c 'cd /sys/class/infiniband && echo *' > /tmp/said
[ "$(cat /tmp/said)" = "doorbell0 rxe0" ] || fail "the devices are $(cat /tmp/said)"
$own dash -c 'cd /dev/infiniband && echo *' > /tmp/said
[ "$(cat /tmp/said)" = "rdma_cm uverbs0 uverbs1" ] || fail "the character devices are $(cat /tmp/said)"
$own dash /tmp/walk rxe0 uverbs0 > /tmp/beside
cmp /host/rxe.txt /tmp/beside || fail "rxe looks different beside the software RNIC"
$own dash -c 'read a < /sys/class/infiniband_verbs/uverbs0/ibdev; read b < /sys/class/infiniband_verbs/uverbs1/ibdev; echo $a $b' \
    > /tmp/said
[ "$(cat /tmp/said)" = "rxe0 doorbell0" ] || fail "the uverbs are of $(cat /tmp/said)"
