"""pyverbs in the process of pytest, which runs on the software RNIC."""

SUITE = """
import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

LENGTH = 5000


def connect(qp, other, gid):
    attr = QPAttr(port_num=1)
    attr.dest_qp_num = other.qp_num
    attr.path_mtu = e.IBV_MTU_1024
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer = 12
    attr.timeout = 14
    attr.retry_cnt = attr.rnr_retry = 7
    attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE
    attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=0), is_global=1, port_num=1)
    qp.to_rts(attr)


def send(payload):
    # Returns the bytes that one queue pair receives from another queue pair of the device.
    assert [device.name.decode() for device in get_device_list()] == ["doorbell0"]
    with Context(name="doorbell0") as context, PD(context) as pd, CQ(context, 8) as cq:
        cap = QPCap(max_send_wr=4, max_recv_wr=4)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1)
        with QP(pd, init) as sender, QP(pd, init) as receiver, MR(pd, 2 * LENGTH, e.IBV_ACCESS_LOCAL_WRITE) as mr:
            gid = context.query_gid(1, 0)
            connect(sender, receiver, gid)
            connect(receiver, sender, gid)
            mr.write(payload, len(payload))
            receiver.post_recv(RecvWR(sg=[SGE(mr.buf + LENGTH, LENGTH, mr.lkey)], num_sge=1))
            sender.post_send(SendWR(sg=[SGE(mr.buf, len(payload), mr.lkey)], num_sge=1))
            found = 0
            while found < 2:
                count, completions = cq.poll(2)
                assert all(completion.status == e.IBV_WC_SUCCESS for completion in completions)
                found += count
            return mr.read(len(payload), LENGTH)


def test_passes(rdma, rdma_faults, rdma_capture):
    assert rdma.in_process
    rdma_faults("drop=0.1,seed=7")
    payload = bytes(range(256)) * (LENGTH // 256)
    assert send(payload) == payload
    assert rdma_capture.files() and "no finding" in rdma_capture.text()


def test_fails(rdma, rdma_faults, rdma_capture):
    rdma_faults("drop opcode=ack nth=1")
    assert send(b"abc") == b"other"
"""


def test_the_plugin_reports_a_failed_test_of_pyverbs(pytester):
    pytester.makepyfile(SUITE)
    done = pytester.runpytest_subprocess("-v")
    done.assert_outcomes(passed=1, failed=1)
    expected = ["*RDMA faults*", "*drop opcode=ack*", "*RDMA capture*", "*RoCE v2 packets*", "no finding"]
    done.stdout.fnmatch_lines(expected)
    (kept,) = pytester.path.glob("rdma-captures/*test_fails/*.pcap")
    assert kept.stat().st_size > 0
