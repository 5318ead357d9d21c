"""Blocks in an InfiniStore server, which reads the client's memory and writes to it by RDMA. A last argument `tcp`
selects TCP for the client."""

import asyncio
import contextlib
import ctypes
import itertools
import os
import socket
import sys
import threading

import infinistore
import uvloop

import common

BLOCK = 16384
BLOCKS = 64

# Seconds after which a write to a dead server counts as failed. The retries of the queue pair end after two seconds.
LIMIT = 5


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def serve(port):
    # The server waits until its completion channel is writable too, which the channels of the kernel never are. So it
    # prints an error in each turn of its loop.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stdout = sys.stderr
    control = common.Control.accept(port)
    service = free_port()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    config = infinistore.ServerConfig(
        manage_port=free_port(),
        service_port=service,
        log_level="error",
        prealloc_size=1,
        dev_name="doorbell0",
        link_type="Ethernet",
        minimal_allocate_size=16,
    )
    infinistore.register_server(loop, config)
    control.send(service)

    def answer():
        common.serve(control, bytearray())
        os._exit(0)  # the server has no other end

    threading.Thread(target=answer).start()
    loop.run_forever()


class NoAnswer(Exception):
    """A write that the library leaves waiting for a dead server."""


class Client:
    """A connection with two regions: blocks are written from the first one, and read into the second one."""

    def __init__(self, service, kind):
        config = infinistore.ClientConfig(
            host_addr="127.0.0.1",
            service_port=service,
            log_level="error",
            connection_type=kind,
            dev_name="doorbell0",
            link_type=infinistore.LINK_ETHERNET,
        )
        self.connection = infinistore.InfinityConnection(config)
        self.connection.connect()
        self.regions = [ctypes.create_string_buffer(BLOCK * BLOCKS) for _ in range(2)]
        self.written, self.read = (memoryview(region).cast("B") for region in self.regions)
        for region in self.regions if kind == infinistore.TYPE_RDMA else []:
            self.connection.register_mr(ctypes.addressof(region), BLOCK * BLOCKS)

    async def transfer(self, call, region, name, count, patience=common.PATIENCE):
        blocks = [(f"{name}-{number}", number * BLOCK) for number in range(count)]
        address = ctypes.addressof(self.regions[region])
        await asyncio.wait_for(call(blocks, BLOCK, address), patience)

    async def compare_all(self):
        for seed in range(40):
            count = 1 + seed * 7 % BLOCKS
            self.written[: count * BLOCK] = common.pattern(seed, count * BLOCK)
            self.read[:] = bytes(BLOCK * BLOCKS)
            await self.transfer(self.connection.rdma_write_cache_async, 0, f"round{seed}", count)
            await self.transfer(self.connection.rdma_read_cache_async, 1, f"round{seed}", count)
            if self.read[: count * BLOCK] != self.written[: count * BLOCK]:
                sys.exit(f"wrong bytes after round {seed}")

    async def write_block(self, length):
        if self.connection.rdma_connected:
            await self.connection.rdma_write_cache_async([("block", 0)], length, ctypes.addressof(self.regions[0]))
        else:
            self.connection.tcp_write_cache("block", ctypes.addressof(self.regions[0]), length)

    async def read_block(self, length):
        if not self.connection.rdma_connected:
            return bytes(self.connection.tcp_read_cache("block"))
        await self.connection.rdma_read_cache_async([("block", 0)], length, ctypes.addressof(self.regions[1]))
        return bytes(self.read[:length])

    async def measure(self):
        means = []
        for seed, length in enumerate((BLOCK, common.LARGE)):
            self.written[:length] = common.pattern(seed, length)
            stopwatch = common.Stopwatch()
            for _ in stopwatch.rounds():
                await self.write_block(length)
            means.append(stopwatch.mean)
            if await self.read_block(length) != self.written[:length]:
                sys.exit(f"wrong bytes after writes of {length} B")
        common.print_speed("16 KiB", *means)

    async def write_until_error(self):
        # The library prints a failed completion, but leaves the caller waiting. So only a limit ends the call.
        # The RNIC reports on standard error that the server does not answer.
        write = self.connection.rdma_write_cache_async
        try:
            for number in itertools.count():
                await self.transfer(write, 0, f"last{number % 100}", BLOCKS, LIMIT)
        except asyncio.TimeoutError:
            # If the server has acknowledged the request before it died, only the next request remains unanswered.
            with contextlib.suppress(asyncio.TimeoutError):
                await self.transfer(write, 0, "after", BLOCKS, LIMIT)
            raise NoAnswer(f"no answer for {LIMIT} s") from None


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    if role == "server":
        serve(port)
    control = common.Control.connect(port)
    kind = infinistore.TYPE_TCP if "tcp" in sys.argv[4:] else infinistore.TYPE_RDMA
    client = Client(control.receive(), kind)
    if sys.argv[3] == "killed":
        common.until_killed(control, lambda _: asyncio.run(client.write_until_error()))
    else:
        asyncio.run(client.measure() if sys.argv[3] == "speed" else client.compare_all())
        control.ask("end")
        print("all bytes are right", flush=True)
    os._exit(0)  # the destructor of a connection waits for its server


main()
