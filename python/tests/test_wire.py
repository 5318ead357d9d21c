"""Packets, by the same code as the command."""

import json
import subprocess

import pytest

import doorbell
from doorbell import wire


def command(*arguments):
    return json.loads(subprocess.check_output([doorbell.command(), "wire", *map(str, arguments), "--json"]))


@pytest.fixture
def capture(tmp_path):
    """A capture of both ends of a bench."""
    file = tmp_path / "bench.pcap"
    words = ["bench", "bw", "-n", "500", "-s", "512", "--pcap", file]
    subprocess.run([doorbell.command(), *words], check=True, capture_output=True)
    return file


def plain(record):
    """Returns a record as JSON has it, which knows no tuples."""
    return json.loads(json.dumps(record))


def test_a_cost_is_that_of_the_command():
    found = wire.cost("write", 1 << 20, link_bits_per_s=1e11)
    assert {**plain(found), "schema": "doorbell-wire-cost/1"} == command(
        "cost", "--op", "write", "-s", "1M", "--link", "100G"
    )
    assert found["request"]["packets"] == 256
    assert wire.cost("write", 1, transport="uc", ipv6=True, vlan=True, mtu=256)["response"] is None


def test_rates_are_explained_as_by_the_command():
    rates = {"rx_bytes": 481e3 * 78, "rx_packets": 481e3, "tx_bytes": 481e3 * 62, "tx_packets": 481e3}
    options = [word for name, value in rates.items() for word in (f"--{name.replace('_', '-')}", value)]
    found = wire.explain(**rates)
    assert plain(found) == command("explain", *options)
    assert found["explanations"][0]["operations"] == ["WRITE"]


def test_captures_are_read_as_by_the_command(capture):
    assert plain(wire.decode(capture)) == command("decode", capture)
    assert plain(wire.explain_capture(capture)) == command("explain", "--pcap", capture)
    found = wire.check(capture)
    assert {**plain(found), "file": str(capture)} == command("check", capture)
    assert found["errors"] == 0 and found["packets"] > 500


@pytest.mark.parametrize(
    "call, why",
    [
        (lambda: wire.cost("jump", 1), 'op is "jump", must be one of send, send-imm'),
        (lambda: wire.cost("write", 1, mtu=1500), "mtu is 1500: must be 256, 512"),
        (lambda: wire.cost("write", 1, link_bits_per_s=0.0), "link_bits_per_s is 0: must be above 0"),
        (lambda: wire.cost("write", -1), "negative"),
        (lambda: wire.cost("fetch-add", 4), "must have 8 bytes"),
        (lambda: wire.decode("/no/such/file"), "/no/such/file cannot be opened"),
        (lambda: wire.decode("/dev/null"), "/dev/null is empty: a capture begins with a header"),
        (lambda: wire.decode("/dev/null", max_conversations=0), "max_conversations is 0, allowed is 1 to"),
        (lambda: wire.check("/dev/null", timeout=32), "timeout is 32, allowed is 1 to 31"),
        (lambda: wire.explain_capture("/dev/null", host="here"), 'host is "here": must be an IP address'),
        (lambda: wire.explain(rx_bytes=-1, rx_packets=1, tx_bytes=1, tx_packets=1), "must be at least 0"),
    ],
)
def test_mistakes_are_sentences(call, why):
    with pytest.raises(doorbell.DoorbellError, match=why):
        call()
