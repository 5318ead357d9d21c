"""Transfers through the Mooncake Transfer Engine, which opens libibverbs by dlopen. A last argument `tcp` selects its
transport over TCP."""

import ctypes
import os
import sys

from mooncake.engine import TransferEngine

import common

HOST = "127.0.0.1"


class End:
    """An engine, and registered memory."""

    def __init__(self, protocol):
        self.engine = TransferEngine()
        devices = ",".join(sorted(os.listdir("/sys/class/infiniband"))) if protocol == "rdma" else ""
        # Without a metadata server, the engines find each other by their addresses.
        if self.engine.initialize(HOST, "P2PHANDSHAKE", protocol, devices) != 0:
            sys.exit("the engine does not start")
        self.store = ctypes.create_string_buffer(common.MEMORY)
        self.memory = memoryview(self.store).cast("B")
        self.address = ctypes.addressof(self.store)
        if self.engine.register_memory(self.address, common.MEMORY) != 0:
            sys.exit("the memory cannot be registered")

    def describe(self):
        return {"session": f"{HOST}:{self.engine.get_rpc_port()}", "address": self.address}

    def transfer(self, call, other, length):
        if call(other["session"], self.address, other["address"], length) != 0:
            raise OSError("the transfer failed")


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    control = common.Control.accept(port) if role == "server" else common.Control.connect(port)
    end = End(sys.argv[4] if len(sys.argv) > 4 else "rdma")
    control.send(end.describe())
    other = control.receive()
    if role == "server":
        common.serve(control, end.memory)
    else:
        write = lambda length: end.transfer(end.engine.transfer_sync_write, other, length)
        read = lambda length: end.transfer(end.engine.transfer_sync_read, other, length)
        common.run_client(sys.argv[3], control, end.memory, write, read)


main()
