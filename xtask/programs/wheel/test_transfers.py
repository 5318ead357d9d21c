"""Programs on rdma4py and on Mooncake under test: their processes transfer bytes, with loss and captures."""

import pathlib

import pytest

SCRIPTS = pathlib.Path(__file__).parents[1] / "transfers"

SUITE = """
import sys

def transfer(rdma, script):
    port = rdma.port()
    server = rdma.start(sys.executable, script, "server", str(port), "data")
    rdma.wait_until_listening(server, port)
    printed = rdma.run(sys.executable, script, "client", str(port), "data", timeout=200)
    rdma.finish(server)
    return printed

def test_passes(rdma, rdma_faults, rdma_capture):
    rdma_faults("drop=0.01,seed=3")
    assert "all bytes are right" in transfer(rdma, SCRIPT)
    assert rdma_capture.files() and rdma_capture.findings() == []

def test_fails(rdma, rdma_capture):
    assert "no byte is right" in transfer(rdma, SCRIPT)
"""


@pytest.mark.parametrize("script", ["rdma4py", "mooncake_engine"])
def test_the_plugin_reports_a_failed_transfer(pytester, script):
    path = str(SCRIPTS / f"{script}.py")
    pytester.makepyfile(SUITE.replace("SCRIPT", repr(path)))
    done = pytester.runpytest_subprocess("-v")
    done.assert_outcomes(passed=1, failed=1)
    server, client = (f"*RDMA program, status 0: *{script}.py {role} *" for role in ("server", "client"))
    done.stdout.fnmatch_lines([server, client, "*all bytes are right*", "*RDMA capture*", "*RoCE v2 packets*"])
    assert len(list(pytester.path.glob("rdma-captures/*test_fails/*.pcap"))) >= 2
