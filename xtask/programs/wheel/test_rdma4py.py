"""rdma4py in the process of pytest, which runs on the software RNIC, and as a program of its own."""

SUITE = """
import ctypes
import sys
import time

import ibverbs as ib

LENGTH = 5000


def send(payload):
    # Returns the bytes that one queue pair writes to the memory of another one.
    (device,) = ib.get_device_list()
    context = device.open()
    pd, cq = context.alloc_pd(), context.create_cq(8)
    store = ctypes.create_string_buffer(2 * LENGTH)
    rights = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE
    mr = pd.reg_mr(ctypes.addressof(store), 2 * LENGTH, rights)
    gid, port = context.query_gid(1, 0), context.query_port(1)
    pairs = [pd.create_qp(ib.QPInitAttr(send_cq=cq, recv_cq=cq)) for _ in range(2)]
    infos = [ib.local_qp_info(pair, port, gid, port=1, psn=7) for pair in pairs]
    for pair, info in zip(pairs, reversed(infos)):
        ib.connect_rc(pair, info, port=1, sgid_index=0, access=rights, local_psn=7)
    memory = memoryview(store).cast("B")
    memory[: len(payload)] = payload
    request = ib.SendWR(
        wr_id=1,
        sg_list=[ib.SGE(mr, len(payload))],
        opcode=ib.WROpcode.RDMA_WRITE,
        send_flags=ib.SendFlags.SIGNALED,
        remote_addr=mr.addr + LENGTH,
        rkey=mr.rkey,
    )
    pairs[0].post_send(request)
    until = time.monotonic() + 30
    while not (found := cq.poll(1)):
        assert time.monotonic() < until, "no completion"
    found[0].raise_for_status()
    return bytes(memory[LENGTH : LENGTH + len(payload)])


def test_passes(rdma, rdma_faults, rdma_capture):
    assert rdma.in_process
    payload = bytes(range(256)) * (LENGTH // 256)
    assert send(payload) == payload


def test_fails(rdma, rdma_capture):
    printed = rdma.run(sys.executable, "-c", "import ibverbs; print(len(ibverbs.get_device_list()))")
    assert printed.strip() == "1"
    assert send(b"abc") == b"other"
"""


def test_the_plugin_reports_a_failed_test_of_rdma4py(pytester):
    pytester.makepyfile(SUITE)
    done = pytester.runpytest_subprocess("-v")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*RDMA program, status 0: *", "*RDMA capture*", "*RoCE v2 packets*", "no finding"])
    assert list(pytester.path.glob("rdma-captures/*test_fails/*.pcap"))
