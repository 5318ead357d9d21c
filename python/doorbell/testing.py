"""Plugin of pytest: fixtures that run programs on the software RNIC, with faults and captures.

    def test_transfer(rdma, rdma_faults, rdma_capture):
        rdma_faults("drop=0.01,seed=7")
        server = rdma.start("ib_send_bw", "-p", str(port := rdma.port()))
        rdma.wait_until_listening(server, port)
        rdma.run("ib_send_bw", "-p", str(port), "127.0.0.1")

If the test fails, its report has the output of the programs, the fault plan and the findings of `doorbell wire check`,
and the captures stay in the folder of `--rdma-captures`.

Programs run as processes of their own. A test that calls verbs in its own process needs
`doorbell run -- python -m pytest`; the fixtures then set the environment of that process too, which the device reads
when the test opens it. Each worker of xdist has its own ports and its own devices.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Generator, Iterable, Iterator, Mapping, Optional, Sequence, Union

import pytest

from doorbell._installed import DoorbellError, command, preloaded, variables

__all__ = ["Capture", "Faults", "Rdma"]

Word = Union[str, "os.PathLike[str]"]

#: Ports of all workers of xdist, which are below those that the kernel gives to clients.
FIRST_PORT = 20_000
PORTS = 10_000
#: Shares of ports for each worker of xdist. A worker that replaces a crashed one has a new number, and so a new share.
SHARES = 4
#: Seconds until a program counts as hanging.
PATIENCE_S = 60.0
#: Seconds between SIGTERM and SIGKILL.
END_S = 5.0
#: Maximum length of the output of a program in a report.
OUTPUT_CHARACTERS = 20_000


class Rdma:
    """The environment of a test: its variables, its devices, and the programs that it started."""

    def __init__(self, folder: Path, options: Sequence[str], more: Mapping[str, str], ports: range) -> None:
        #: Folder of the test for its files.
        self.folder = folder
        #: Whether this process itself runs on the software RNIC.
        self.in_process = preloaded() is not None
        #: Variables that programs need, in addition to those of this process.
        self.env: dict[str, str] = {}
        self._own = pytest.MonkeyPatch()
        self._ports = ports
        self._programs: list[tuple[str, Path, subprocess.Popen[str]]] = []
        self._options = list(options)
        self.set({**variables(options), **more})

    @property
    def devices(self) -> list[str]:
        """Names of the devices that programs find."""
        return [f"doorbell{number}" for number in range(int(self.env.get("DOORBELL_DEVICES") or 1))]

    def set(self, values: Mapping[str, str]) -> None:
        """Sets variables for programs that start from now on, and for this process if it runs on the software RNIC."""
        self.env.update(values)
        for name, value in values.items():
            # The dynamic linker has read its variables when this process started.
            if self.in_process and name.startswith("DOORBELL_"):
                self._own.setenv(name, value)

    def port(self) -> int:
        """Returns a TCP port that is free, and that no other test of this session gets."""
        for port in _in_turn(self._ports):
            with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
            return port
        raise DoorbellError("no TCP port is free")

    def start(self, *program: Word, **options: Any) -> "subprocess.Popen[str]":
        """Starts a program on the software RNIC. `options` are those of `subprocess.Popen`.

        Standard output and standard error go to a file, see `output`. The program is ended after the test.
        """
        words = [os.fspath(word) for word in program]
        if not words:
            raise DoorbellError("no program is given: start(PROGRAM, ARGUMENT, ...)")
        if shutil.which(words[0], path={**os.environ, **(options.get("env") or {})}.get("PATH")) is None:
            raise DoorbellError(f"{words[0]} is not installed, or PATH does not lead to it")
        file = self.folder / f"program-{len(self._programs)}.txt"
        options["env"] = {**os.environ, **self.env, **(options.get("env") or {})}
        options.setdefault("stdin", subprocess.DEVNULL)
        with file.open("w") as output:
            options.setdefault("stdout", output)
            options.setdefault("stderr", subprocess.STDOUT)
            started = subprocess.Popen(words, text=True, **options)
        self._programs.append((" ".join(words), file, started))
        return started

    def run(self, *program: Word, timeout: float = PATIENCE_S, **options: Any) -> str:
        """Runs a program on the software RNIC to its end, and returns its output.

        Raises `AssertionError` with the output if the program fails, or does not end within `timeout` seconds.
        """
        return self.finish(self.start(*program, **options), timeout)

    def finish(self, program: "subprocess.Popen[str]", timeout: float = PATIENCE_S) -> str:
        """Waits for a started program, as `run` does, and returns its output."""
        words = next(words for words, _, started in self._programs if started is program)
        try:
            status = program.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"`{words}` has not ended after {timeout} s:\n{self.output(program)}") from None
        if status != 0:
            how = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
            raise AssertionError(f"`{words}` {how}:\n{self.output(program)}")
        return self.output(program)

    def output(self, program: "subprocess.Popen[str]") -> str:
        """Returns what a started program has printed so far."""
        file = next(file for _, file, started in self._programs if started is program)
        return file.read_text(errors="replace")

    def wait_until_listening(self, program: "subprocess.Popen[str]", port: int, timeout: float = PATIENCE_S) -> None:
        """Waits until a socket listens at a TCP port. It makes no connection, which many servers take for a client."""
        until = time.monotonic() + timeout
        while not _is_listening(port):
            if program.poll() is not None:
                self.finish(program)
                raise AssertionError(f"the program ended without listening at port {port}:\n{self.output(program)}")
            if time.monotonic() > until:
                raise AssertionError(f"nothing listens at port {port} after {timeout} s:\n{self.output(program)}")
            time.sleep(0.01)

    def end(self) -> None:
        """Ends the programs that still run, so that their captures are complete."""
        running = [started for _, _, started in self._programs if started.poll() is None]
        for started in running:
            started.terminate()
        until = time.monotonic() + END_S
        for started in running:
            try:
                started.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()

    def sections(self) -> Iterator[tuple[str, str]]:
        """Returns title and text of each program for the report of a failed test."""
        for words, file, started in self._programs:
            text = file.read_text(errors="replace") if file.exists() else ""
            yield f"RDMA program, status {started.poll()}: {words}", text[-OUTPUT_CHARACTERS:] or "no output"

    def _close(self) -> None:
        self.end()
        self._own.undo()


class Faults:
    """Fault plan of a test. Calling it sets the plan."""

    def __init__(self, rdma: Rdma) -> None:
        self._rdma = rdma
        #: File to which the devices write each rule that fires.
        self.journal = rdma.folder / "faults.jsonl"
        #: The plan, as the devices get it.
        self.plan: Optional[str] = None

    def __call__(self, plan: str = "", *, named: Optional[Word] = None) -> None:
        """Sets a plan such as `drop=0.01,seed=7`, or the plan of a file or of a built-in name such as `lost-ack`.

        Raises `DoorbellError` if the plan is not allowed, or if a program of the test has started already.
        """
        if self._rdma._programs:
            raise DoorbellError("a program has read its fault plan already: call rdma_faults before rdma.start")
        if bool(plan) == (named is not None):
            raise DoorbellError("give one plan: rdma_faults('drop=0.01,seed=7') or rdma_faults(named='lost-ack')")
        given = ["--fault", plan] if named is None else ["--fault-plan", os.fspath(named)]
        found = variables([*self._rdma._options, *given, "--fault-journal", str(self.journal)])
        values = {name: found[name] for name in ("DOORBELL_FAULT", "DOORBELL_FAULT_JOURNAL")}
        self.plan = values["DOORBELL_FAULT"]
        self._rdma.set(values)

    def fired(self) -> list[dict[str, Any]]:
        """Returns the entries of the journal: each time that a rule has fired. Shares such as `drop=0.01` have none."""
        if not self.journal.exists():
            return []
        return [json.loads(line) for line in self.journal.read_text().splitlines() if line.strip()]


class Capture:
    """Captures of a test, one file for each process and device."""

    def __init__(self, rdma: Rdma) -> None:
        self._rdma = rdma
        self._folder = rdma.folder / "captures"
        self._folder.mkdir()
        rdma.set({"DOORBELL_PCAP": str(self._folder / "%p-%d.pcap")})

    def files(self) -> list[Path]:
        """Returns the captures, one for each time that a process opened a device, in the order of their names."""
        return sorted(file for file in self._folder.glob("*.pcap") if file.stat().st_size > 0)

    def text(self) -> str:
        """Returns the judgement of `doorbell wire check`, for people."""
        files = self.files()
        if not files:
            return "no process of the test has opened a device"
        words = [str(command()), "wire", "check", *map(str, files)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout.replace(f"{self._folder}{os.sep}", "")

    def findings(self) -> list[dict[str, Any]]:
        """Returns the findings of `doorbell.wire.check` in all captures."""
        from doorbell import wire  # pytest loads this plugin also for tests that need no packets

        return [finding for file in self.files() for finding in wire.check(file)["findings"]]

    def keep(self, folder: Path) -> list[Path]:
        """Copies the captures to a folder, and returns the copies."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return [Path(shutil.copy2(file, folder)) for file in self.files()]

    def _close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _share(worker: int, workers: int) -> range:
    """Returns the ports of a worker, which no other worker has. They are empty for far too large numbers."""
    size = PORTS // (SHARES * workers)
    first = FIRST_PORT + worker * size
    return range(first, min(first + size, FIRST_PORT + PORTS))


_next_ports: dict[range, Iterator[int]] = {}


def _in_turn(ports: range) -> Iterable[int]:
    """Returns these ports in turn, each at most once in a call."""
    return itertools.islice(_next_ports.setdefault(ports, itertools.cycle(ports)), len(ports))


def _is_listening(port: int) -> bool:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def _options(item: pytest.Item) -> list[str]:
    """Returns the options of `doorbell env` in the marks of a test: `devices=2` stands for `--devices 2`."""
    options = []
    for mark in reversed(list(item.iter_markers("rdma"))):
        options += [str(word) for word in mark.args]
        for name, value in mark.kwargs.items():
            option = "--" + name.replace("_", "-")
            values = value if isinstance(value, (list, tuple)) else [value]
            options += [option] if value is True else [word for one in values for word in (option, str(one))]
    return options


@pytest.fixture
def rdma(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Rdma, None, None]:
    """Programs on the software RNIC. The mark `rdma(devices=2, link="udp")` has options of `doorbell env`."""
    worker = re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or "0"
    ports = _share(int(worker), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1))
    folder = tmp_path / "rdma"
    counters = folder / "counters"
    counters.mkdir(mode=0o700, parents=True)
    # Other workers have devices of the same names, and a test may order the port of one of them down.
    made = Rdma(folder, _options(request.node), {"DOORBELL_COUNTERS_DIR": str(counters)}, ports)
    yield made
    made._close()


@pytest.fixture
def rdma_faults(rdma: Rdma) -> Faults:
    """Faults of the devices: `rdma_faults("drop=0.01,seed=7")`, before the first program starts."""
    return Faults(rdma)


@pytest.fixture
def rdma_capture(rdma: Rdma) -> Generator[Capture, None, None]:
    """Captures of all packets, which stay if the test fails."""
    made = Capture(rdma)
    yield made
    rdma.end()
    made._close()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the plugin."""
    group = parser.getgroup("rdma", "software RNIC of doorbell")
    group.addoption(
        "--rdma-captures",
        metavar="FOLDER",
        help="folder for the captures of failed tests (default: rdma-captures in the root folder)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describes the mark."""
    config.addinivalue_line("markers", "rdma(**options): options of `doorbell env` for the fixture rdma")


def _kept_in(item: pytest.Item) -> Path:
    given = item.config.getoption("rdma_captures")
    folder = Path(given) if given else item.config.rootpath / "rdma-captures"
    return folder / re.sub(r"[^A-Za-z0-9._-]+", "-", item.nodeid).strip("-.")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Adds programs, fault plan and findings to the report of a failed test."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    made: Mapping[str, Any] = getattr(item, "funcargs", {})
    rdma = made.get("rdma")
    if not (report.when == "call" and report.failed and isinstance(rdma, Rdma)):
        return
    rdma.end()
    report.sections += rdma.sections()
    faults, capture = made.get("rdma_faults"), made.get("rdma_capture")
    if isinstance(faults, Faults) and faults.plan:
        # The shares of a plan are before its rules, and only rules are in the journal.
        fired = f"\nfired: {len(faults.fired())}" if ";" in faults.plan else ""
        report.sections.append(("RDMA faults", faults.plan + fired))
    if isinstance(capture, Capture):
        folder = _kept_in(item)
        try:
            kept = "".join(f"{file}\n" for file in capture.keep(folder))
            report.user_properties.append(("rdma_captures", str(folder)))
        except OSError as error:
            kept = f"{folder} cannot be written, so no capture is kept: {error}. Name another with --rdma-captures\n"
        report.sections.append(("RDMA capture", kept + capture.text()))
