"""Recomputes the ICRC of every packet of the captures in a directory, with scapy's RoCE layer.

usage: icrc.py DIRECTORY [PATTERN]; PATTERN selects files by name, *.pcap by default.

scapy is independent of Doorbell, so the check does not only compare Doorbell with itself. It covers only IPv4, since
scapy computes no ICRC for IPv6.
"""

import pathlib
import sys

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import PcapReader


def check(path):
    packets = 0
    with PcapReader(str(path)) as capture:
        for number, frame in enumerate(capture, 1):
            # scapy's reader dissects a frame only if it supports the link type. Otherwise dissect the frame here.
            if not isinstance(frame, Ether):
                frame = Ether(bytes(frame))
            if IP not in frame or UDP not in frame or BTH not in frame:
                sys.exit(f"{path}: packet {number} is no RoCE v2 packet: {frame.summary()}")
            found = bytes(frame[UDP].payload)[-4:]
            computed = frame[BTH].compute_icrc(b"")
            if found != computed:
                sys.exit(
                    f"{path}: packet {number} has the ICRC {found.hex()}, scapy computes {computed.hex()}"
                    f" (identification {frame[IP].id}): {frame.summary()}"
                )
            packets += 1
    return packets


def main():
    total = 0
    pattern = sys.argv[2] if len(sys.argv) > 2 else "*.pcap"
    for path in sorted(pathlib.Path(sys.argv[1]).glob(pattern)):
        packets = check(path)
        if packets == 0:
            sys.exit(f"{path} holds no packets")
        total += packets
        print(f"{path.name}: {packets} ICRCs are right", file=sys.stderr)
    if total == 0:
        sys.exit(f"{sys.argv[1]} holds no captures")
    print(f"scapy agrees with all {total} ICRCs", file=sys.stderr)


if __name__ == "__main__":
    main()
