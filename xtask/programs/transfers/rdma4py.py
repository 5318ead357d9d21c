"""Transfers through the Python package ibverbs (rdma4py), which opens libibverbs by dlopen."""

import ctypes
import sys

import ibverbs as ib

import common

RIGHTS = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ


class End:
    """A queue pair, and registered memory."""

    def __init__(self):
        devices = ib.get_device_list()
        assert [device.name for device in devices] == ["doorbell0"], devices
        self.context = devices[0].open()
        self.pd = self.context.alloc_pd()
        self.cq = self.context.create_cq(16)
        self.qp = self.pd.create_qp(ib.QPInitAttr(send_cq=self.cq, recv_cq=self.cq))
        self.store = ctypes.create_string_buffer(common.MEMORY)
        self.memory = memoryview(self.store).cast("B")
        self.mr = self.pd.reg_mr(ctypes.addressof(self.store), common.MEMORY, RIGHTS)

    def describe(self):
        gid, port = self.context.query_gid(1, 0), self.context.query_port(1)
        info = ib.local_qp_info(self.qp, port, gid, port=1, psn=7)
        return {"qp": info.to_bytes().hex(), "address": self.mr.addr, "rkey": self.mr.rkey}

    def connect(self, other):
        self.other = other
        remote = ib.QPInfo.from_bytes(bytes.fromhex(other["qp"]))
        ib.connect_rc(self.qp, remote, port=1, sgid_index=0, access=RIGHTS, local_psn=7)

    def transfer(self, opcode, length):
        request = ib.SendWR(
            wr_id=length,
            sg_list=[ib.SGE(self.mr, length)],
            opcode=opcode,
            send_flags=ib.SendFlags.SIGNALED,
            remote_addr=self.other["address"],
            rkey=self.other["rkey"],
        )
        self.qp.post_send(request)
        (completion,) = common.wait_until(lambda: self.cq.poll(1) or None, "a request")
        completion.raise_for_status()
        assert completion.wr_id == length


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    control = common.Control.accept(port) if role == "server" else common.Control.connect(port)
    end = End()
    control.send(end.describe())
    end.connect(control.receive())
    control.send("connected")
    assert control.receive() == "connected"
    if role == "server":
        common.serve(control, end.memory)
    else:
        write = lambda length: end.transfer(ib.WROpcode.RDMA_WRITE, length)
        read = lambda length: end.transfer(ib.WROpcode.RDMA_READ, length)
        common.run_client(sys.argv[3], control, end.memory, write, read)


main()
