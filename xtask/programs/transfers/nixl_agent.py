"""Transfers through NIXL, whose wheel brings a UCX and a renamed libibverbs of its own."""

import ctypes
import os
import sys

from nixl_cu12._api import nixl_agent, nixl_agent_config

import common


class End:
    """An agent, and registered memory."""

    def __init__(self, role):
        self.agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
        self.store = ctypes.create_string_buffer(common.MEMORY)
        self.memory = memoryview(self.store).cast("B")
        self.address = ctypes.addressof(self.store)
        self.agent.register_memory([(self.address, common.MEMORY, 0, "")], "DRAM")

    def describe(self):
        return {"agent": self.agent.get_agent_metadata().hex(), "address": self.address}

    def connect(self, other):
        self.name = self.agent.add_remote_agent(bytes.fromhex(other["agent"]))
        self.other = other

    def transfer(self, operation, length):
        own, remote = (
            self.agent.get_xfer_descs([(address, length, 0)], "DRAM")
            for address in (self.address, self.other["address"])
        )
        name = self.name.decode() if isinstance(self.name, bytes) else self.name
        request = self.agent.initialize_xfer(operation, own, remote, name)
        states = {"DONE": True, "PROC": None}
        state = states.get(self.agent.transfer(request), False)
        if state is None:
            state = common.wait_until(lambda: states.get(self.agent.check_xfer_state(request), False), "a transfer")
        if not state:
            raise OSError("the transfer failed")
        self.agent.release_xfer_handle(request)


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    control = common.Control.accept(port) if role == "server" else common.Control.connect(port)
    end = End(role)
    control.send(end.describe())
    end.connect(control.receive())
    if role == "server":
        common.serve(control, end.memory)
    else:
        write = lambda length: end.transfer("WRITE", length)
        read = lambda length: end.transfer("READ", length)
        common.run_client(sys.argv[3], control, end.memory, write, read)
    if sys.argv[3] == "speed":
        os._exit(0)  # over TCP, the end of an agent crashes


main()
