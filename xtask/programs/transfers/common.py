"""Shared code of these programs, which move bytes between the memory of a server and of a client through a library.

`PROGRAM server PORT` offers memory, and `PROGRAM client PORT WAY` writes and reads it. Both compare all bytes. The ways
are `data`, and `killed`: the client then writes until the server is gone, and expects an error of the library. Both ends
describe themselves over a TCP connection on loopback. With the way `failover`, a fault plan takes the port of the
client's first device down in the middle, and the client continues. With the way `speed`, the client prints the time of
small writes and the throughput of large ones.
"""

import json
import random
import socket
import sys
import time

# Sizes of the transfers: one byte, less than a packet, several packets, and several messages of most libraries.
SIZES = [1, 1000, 65536, 1 << 20]
ROUNDS = 5

# Bytes of memory that each end registers.
MEMORY = 1 << 20

# Sizes of measured writes: one whose time counts, and one whose throughput counts.
SMALL, LARGE = 8, MEMORY

# Seconds of a measurement, and of the same writes before it.
MEASURED, WARM_UP = 0.6, 0.2

# Seconds after which a step counts as hanging. No step takes this long, even on a busy machine.
PATIENCE = 120


def pattern(seed, length):
    """Returns bytes that differ for each seed."""
    return random.Random(seed).randbytes(length)


class Control:
    """A TCP connection for descriptions of the ends, with one JSON value in each line."""

    def __init__(self, connection):
        connection.settimeout(PATIENCE)
        self.lines = connection.makefile("r")
        self.connection = connection

    @classmethod
    def accept(cls, port):
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(PATIENCE)
            return cls(listener.accept()[0])

    @classmethod
    def connect(cls, port):
        return cls(socket.create_connection(("127.0.0.1", port), PATIENCE))

    def send(self, value):
        self.connection.sendall(f"{json.dumps(value)}\n".encode())

    def receive(self):
        line = self.lines.readline()
        if not line:
            raise EOFError("the other end closed the control connection")
        return json.loads(line)

    def ask(self, *question):
        self.send(question)
        return self.receive()


def wait_until(done, what):
    """Waits until `done` returns a value that is not None, and returns this value."""
    until = time.monotonic() + PATIENCE
    while (value := done()) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"{what} does not end")
        time.sleep(0)
    return value


def serve(control, memory):
    """Answers the questions of a client about `memory`, a writable buffer."""
    while True:
        question = control.receive()
        if question[0] == "compare":
            _, seed, length = question
            control.send(memory[:length] == pattern(seed, length))
        elif question[0] == "fill":
            _, seed, length = question
            memory[:length] = pattern(seed, length)
            control.send(True)
        elif question[0] == "loop":
            control.send(True)
            print("ready to be killed", flush=True)
        else:
            control.send(True)
            return


def compare_all(control, memory, write, read):
    """Moves bytes in both directions, and compares them. `write` and `read` move the first bytes of the memory."""
    seed = 0
    for length in SIZES * ROUNDS:
        seed += 1
        memory[:length] = pattern(seed, length)
        write(length)
        if control.ask("compare", seed, length) is not True:
            sys.exit(f"the server has wrong bytes after a write of {length} B")
        seed += 1
        control.ask("fill", seed, length)
        memory[:length] = bytes(length)
        read(length)
        if memory[:length] != pattern(seed, length):
            sys.exit(f"wrong bytes after a read of {length} B")


def until_killed(control, write):
    """Writes until the server is gone, and checks that the library reports an error. A limit of these programs, and a
    failed check of their own, are no such error."""
    control.ask("loop")
    until = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < until:
            write(1 << 20)
    except (TimeoutError, AssertionError):
        raise
    except Exception as error:  # each library has errors of its own
        print(f"the peer is gone: {error}", flush=True)
        return
    sys.exit("no error after the death of the server")


def through_failover(control, memory, write):
    """Writes and compares until the port of the first device is down, and then further rounds."""
    seed, rounds_left = 0, 4 * ROUNDS
    until = time.monotonic() + PATIENCE
    while rounds_left > 0:
        seed += 1
        memory[:] = pattern(seed, MEMORY)
        write(MEMORY)
        if control.ask("compare", seed, MEMORY) is not True:
            sys.exit(f"the server has wrong bytes in round {seed}")
        with open("/sys/class/infiniband/doorbell0/ports/1/state") as state:
            rounds_left -= state.read() == "1: DOWN\n"
        if time.monotonic() > until:
            sys.exit("the port does not go down, or the transfers do not end")


class Stopwatch:
    """Mean time in seconds of the rounds of a loop, after a warm-up."""

    def rounds(self):
        for seconds in (WARM_UP, MEASURED):
            count, begun = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begun) < seconds:
                yield
                count += 1
        self.mean = elapsed / count


def print_speed(small, of_small, of_large):
    """Prints the time of a write of `small`, such as "8 B", and the throughput. Both times are in seconds."""
    print(f"one write, {small}: {of_small * 1e6:.2f} us", flush=True)
    print(f"writes, 1 MiB: {LARGE / of_large / 1e6:.0f} MB/s", flush=True)


def measure(control, memory, write):
    """Measures writes of both sizes, each one after the other. Compares the bytes of the last one of each size."""
    means = []
    for seed, length in enumerate((SMALL, LARGE), 1):
        memory[:length] = pattern(seed, length)
        stopwatch = Stopwatch()
        for _ in stopwatch.rounds():
            write(length)
        means.append(stopwatch.mean)
        if control.ask("compare", seed, length) is not True:
            sys.exit(f"the server has wrong bytes after writes of {length} B")
    print_speed("8 B", *means)


def run_client(way, control, memory, write, read):
    if way == "killed":
        until_killed(control, write)
        return
    if way == "failover":
        through_failover(control, memory, write)
    elif way == "speed":
        measure(control, memory, write)
    else:
        compare_all(control, memory, write, read)
    control.ask("end")
    print("all bytes are right", flush=True)
