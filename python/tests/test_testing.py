"""The plugin: each test runs an inner suite, and reads its report."""

import shutil
from itertools import combinations

import pytest

from doorbell import testing

pytestmark = pytest.mark.skipif(shutil.which("ib_send_bw") is None, reason="perftest is not installed")

SUITE = """
import os

def pair(rdma, *options):
    port = rdma.port()
    words = ["ib_send_bw", "-n", "200", "-p", str(port), *options]
    server = rdma.start(*words)
    rdma.wait_until_listening(server, port)
    printed = rdma.run(*words, "127.0.0.1")
    rdma.finish(server)
    return printed

def test_passes(rdma, rdma_faults, rdma_capture):
    rdma_faults("drop=0.02,seed=7")
    assert "#bytes" in pair(rdma)
    assert len(rdma_capture.files()) == 2 and rdma_capture.findings() == []

def test_fails(rdma, rdma_faults, rdma_capture):
    rdma_faults("drop opcode=ack nth=1")
    pair(rdma)
    assert len(rdma_faults.fired()) == 0, "on purpose"
"""


@pytest.fixture
def suite(pytester):
    """Folder of the inner suite, below which inner runs put their files."""
    pytester.makepyfile(SUITE)
    return pytester


def test_the_capture_and_findings_of_a_failed_test_stay(suite):
    done = suite.runpytest_subprocess("-v")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*RDMA program, status 0: ib_send_bw*",
            "*RDMA faults*",
            "*drop opcode=ack*",
            "fired: 1",
            "*RDMA capture*",
            "*rdma-captures/*test_fails/*.pcap",
            "*: * frames in pcapng, * RoCE v2 packets*",
            "no finding",
        ]
    )
    assert len(list(suite.path.glob("rdma-captures/*test_fails/*.pcap"))) == 2
    assert not list(suite.path.glob("rdma-captures/*test_passes*"))


def test_workers_of_xdist_do_not_meet(suite):
    pytest.importorskip("xdist")
    suite.makepyfile(test_more=SUITE.replace("def test_", "def test_more_"))
    done = suite.runpytest_subprocess("-n", "2", "--rdma-captures", "kept")
    done.assert_outcomes(passed=2, failed=2)
    assert len(list(suite.path.glob("kept/*/*.pcap"))) == 4


@pytest.mark.parametrize("workers", [1, 2, 21, 500])
def test_workers_share_no_port(workers):
    # Some workers may replace crashed ones.
    shares = [set(testing._share(worker, workers)) for worker in range(2 * workers)]
    assert all(shares) and all(one.isdisjoint(other) for one, other in combinations(shares, 2))
    assert max(map(max, shares)) < 32_768, "the kernel gives these ports to clients"
    assert not testing._share(1_000_000, workers)


def test_only_rules_have_a_number_of_firings(pytester):
    pytester.makepyfile(
        """
        def test_shares(rdma, rdma_faults):
            rdma_faults("drop=0.01,seed=7")
            assert False, "on purpose"
        """
    )
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*RDMA faults*", "*drop=0.01*"])
    done.stdout.no_fnmatch_line("fired: *")


def test_a_folder_that_cannot_be_written_fails_no_test(suite):
    suite.path.joinpath("file").write_text("")
    done = suite.runpytest_subprocess("--rdma-captures", "file/kept")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*cannot be written, so no capture is kept*Name another with --rdma-captures"])


def test_marks_choose_devices_and_mistakes_are_named(pytester):
    pytester.makepyfile(
        """
        import pytest
        from doorbell import DoorbellError

        @pytest.mark.rdma(devices=2)
        def test_two(rdma):
            assert rdma.devices == ["doorbell0", "doorbell1"]
            assert "doorbell1" in rdma.run("ibv_devices")

        def test_mistakes(rdma, rdma_faults):
            with pytest.raises(DoorbellError, match="is not installed, or PATH does not lead to it"):
                rdma.start("no-such-program")
            with pytest.raises(DoorbellError, match="give one plan"):
                rdma_faults()
            with pytest.raises(AssertionError, match="ended with status 3"):
                rdma.run("sh", "-c", "exit 3")
            with pytest.raises(AssertionError, match="has not ended after"):
                rdma.run("sleep", "9", timeout=0.1)
            with pytest.raises(DoorbellError, match="call rdma_faults before rdma.start"):
                rdma_faults("drop=0.1")

        @pytest.mark.rdma(link="pigeon")
        def test_unknown(rdma):
            pass
        """
    )
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*DoorbellError: invalid value 'pigeon' for '--link <LINK>'*"])
