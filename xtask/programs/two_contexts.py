"""Two contexts of pyverbs in one process, each on a device of its own. Their queue pairs are connected with each other.
Writes, reads and messages go in both directions, and all bytes are compared."""

import random

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 1 << 18
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
OPERATIONS = [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_SEND]


class End:
    def __init__(self, name):
        self.context = Context(name=name)
        self.gid = self.context.query_gid(1, 0)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        self.mr = MR(self.pd, SIZE, RIGHTS)
        capacities = QPCap(max_send_wr=8, max_recv_wr=8)
        attributes = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacities)
        self.qp = QP(self.pd, attributes)

    def connect(self, other):
        route = GlobalRoute(dgid=other.gid, sgid_index=0)
        attributes = QPAttr(port_num=1)
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attributes.dest_qp_num = other.qp.qp_num
        attributes.qp_access_flags = RIGHTS
        attributes.path_mtu = e.IBV_MTU_1024
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry, attributes.min_rnr_timer = 14, 7, 7, 12
        self.qp.to_rts(attributes)

    def completion(self):
        count, completions = 0, []
        while count == 0:
            count, completions = self.cq.poll(1)
        assert completions[0].status == e.IBV_WC_SUCCESS, completions[0]


def transfer(own, other, operation, generator):
    memory = [generator.randbytes(SIZE) for _ in range(2)]
    for end, content in zip((own, other), memory):
        end.mr.write(content, SIZE)
    if operation == e.IBV_WR_SEND:
        other.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(other.mr.buf, SIZE, other.mr.lkey)]))
    request = SendWR(opcode=operation, num_sge=1, sg=[SGE(own.mr.buf, SIZE, own.mr.lkey)])
    if operation != e.IBV_WR_SEND:
        request.set_wr_rdma(other.mr.rkey, other.mr.buf)
    own.qp.post_send(request)
    own.completion()
    if operation == e.IBV_WR_SEND:
        other.completion()
    expected = memory[1] if operation == e.IBV_WR_RDMA_READ else memory[0]
    for end in own, other:
        assert end.mr.read(SIZE, 0) == expected, f"wrong bytes after operation {operation}"


def main():
    names = sorted(device.name.decode() for device in get_device_list())
    assert names == ["doorbell0", "doorbell1"], names
    ends = [End(name) for name in names]
    assert ends[0].gid.gid != ends[1].gid.gid
    ends[0].connect(ends[1])
    ends[1].connect(ends[0])
    generator = random.Random(1)
    for _ in range(10):
        for operation in OPERATIONS:
            transfer(ends[0], ends[1], operation, generator)
            transfer(ends[1], ends[0], operation, generator)
    print("all bytes are right")


main()
