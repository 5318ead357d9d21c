from typing import Any, Optional

def cost(
    op: str,
    size: int,
    mtu: int,
    transport: str,
    ipv6: bool,
    vlan: bool,
    link_bits_per_s: Optional[float],
) -> dict[str, Any]: ...
def explain_rates(
    rx_bytes: float,
    rx_packets: float,
    tx_bytes: float,
    tx_packets: float,
    mtu: Optional[int],
    ipv6: Optional[bool],
    vlan: bool,
    link_bits_per_s: Optional[float],
    tolerance: float,
) -> dict[str, Any]: ...
def explain_capture(
    path: str,
    host: Optional[str],
    udp_port: int,
    mtu: Optional[int],
    vlan: bool,
    link_bits_per_s: Optional[float],
    tolerance: float,
) -> dict[str, Any]: ...
def decode_capture(path: str, udp_port: int, max_conversations: int, ignore_icrc: bool) -> dict[str, Any]: ...
def check_capture(
    path: str,
    udp_port: int,
    max_conversations: int,
    ignore_icrc: bool,
    timeout: Optional[int],
    retry_count: Optional[int],
    cnp_interval_s: Optional[float],
    complete: bool,
) -> dict[str, Any]: ...
