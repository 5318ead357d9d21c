"""Packets of RDMA: their cost, the probable operations behind counters, and captures.

The functions call the same code as the commands `doorbell wire cost`, `explain`, `decode` and `check`, and return the
same fields as `--json`. docs/wire.md describes them. A wrong argument or file raises `DoorbellError`.

    from doorbell import wire

    wire.cost("write", 1 << 20)["request"]["packets"]     # 256
    wire.check("packets.pcap")["findings"]
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional, Union

from doorbell import _wire
from doorbell._installed import DoorbellError

Path = Union[str, "os.PathLike[str]"]
Record = dict[str, Any]

#: UDP port of RoCE v2.
ROCE_PORT = 4791


def cost(
    op: str,
    size: int,
    *,
    mtu: int = 4096,
    transport: str = "rc",
    ipv6: bool = False,
    vlan: bool = False,
    link_bits_per_s: Optional[float] = None,
) -> Record:
    """Returns the packets, frame bytes and line bytes of a message of `size` bytes without loss.

    `op` is `send`, `send-imm`, `send-inv`, `write`, `write-imm`, `read`, `compare-swap` or `fetch-add`, and `transport`
    is `rc`, `uc` or `ud`. With `link_bits_per_s`, the field `link` has the maximum rate on a full-duplex link.
    """
    return _call(_wire.cost, op, size, mtu, transport, ipv6, vlan, link_bits_per_s)


def explain(
    *,
    rx_bytes: float,
    rx_packets: float,
    tx_bytes: float,
    tx_packets: float,
    mtu: Optional[int] = None,
    ipv6: Optional[bool] = None,
    vlan: bool = False,
    link_bits_per_s: Optional[float] = None,
    tolerance: float = 0.01,
) -> Record:
    """Returns the probable operations behind counters that grow by these rates per second.

    The counters are those of RDMA traffic of one host, with bytes of Ethernet frames without FCS. `tolerance` is the
    maximum relative error of a mean packet length, 0 to 0.1.
    """
    rates = (float(rx_bytes), float(rx_packets), float(tx_bytes), float(tx_packets))
    return _call(_wire.explain_rates, *rates, mtu, ipv6, vlan, link_bits_per_s, tolerance)


def explain_capture(
    path: Path,
    *,
    host: Optional[str] = None,
    udp_port: int = ROCE_PORT,
    mtu: Optional[int] = None,
    vlan: bool = False,
    link_bits_per_s: Optional[float] = None,
    tolerance: float = 0.01,
) -> Record:
    """Returns the probable operations of a host in a capture, as `explain` does.

    `host` is an IP address. Without it, the host is the one that sends or receives all packets.
    """
    return _call(_wire.explain_capture, os.fspath(path), host, udp_port, mtu, vlan, link_bits_per_s, tolerance)


def decode(
    path: Path, *, udp_port: int = ROCE_PORT, max_conversations: int = 1024, ignore_icrc: bool = False
) -> Record:
    """Returns a summary of a capture: conversations, operations, retransmissions and times.

    If the file is damaged, the summary is that of the readable part, and the field `stopped` has the reason.
    """
    return _call(_wire.decode_capture, os.fspath(path), udp_port, max_conversations, ignore_icrc)


def check(
    path: Path,
    *,
    udp_port: int = ROCE_PORT,
    max_conversations: int = 1024,
    ignore_icrc: bool = False,
    timeout: Optional[int] = None,
    retry_count: Optional[int] = None,
    cnp_interval_s: Optional[float] = None,
    complete: bool = False,
) -> Record:
    """Returns the judgement of a capture by the rules of IBTA, with a list of `findings`.

    `timeout` (an exponent, 1 to 31), `retry_count` (0 to 7) and `cnp_interval_s` are properties of the queue pairs that
    packets do not show. `complete` states that the capture has each packet once, in the order of the network.
    """
    reading = (udp_port, max_conversations, ignore_icrc)
    return _call(_wire.check_capture, os.fspath(path), *reading, timeout, retry_count, cnp_interval_s, complete)


def _call(function: Callable[..., Record], *arguments: Any) -> Record:
    try:
        return function(*arguments)
    except (ValueError, OverflowError, TypeError) as error:
        raise DoorbellError(str(error)) from None
