"""The command `doorbell` of this installation, and its environment for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Sequence

DISTRIBUTION = "doorbell-rdma"
LIBRARY = "libdoorbell_ibverbs.so"
# The command and its libraries need at least this version of the GNU C library.
GLIBC = (2, 28)


class DoorbellError(Exception):
    """A sentence that says what is wrong, and what helps."""


def version() -> str:
    """Returns the version of the installed package."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise DoorbellError(f"{DISTRIBUTION} is not installed here: run `pip install {DISTRIBUTION}`") from None


def command() -> Path:
    """Returns the path of the command `doorbell` of this installation, which need not be in PATH.

    Raises `DoorbellError` if the command is missing, or if it cannot run with the C library of this machine.
    """
    _check_libc(_libc())
    places = _places()
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise DoorbellError(
        f"the command doorbell is missing, looked for {looked}: run `pip install --force-reinstall {DISTRIBUTION}`"
    )


def _places() -> list[Path]:
    """Returns the paths at which pip may have put the command, the most certain one first."""
    places = []
    try:
        files = metadata.distribution(DISTRIBUTION).files or []
        places = [Path(file.locate()) for file in files if file.name == "doorbell" and file.parent.name == "bin"]
    except metadata.PackageNotFoundError:
        pass
    # `pip install --target` moves the command, and does not correct its list of files.
    places += [Path(__file__).parents[1] / "bin/doorbell", Path(sysconfig.get_path("scripts")) / "doorbell"]
    return list(dict.fromkeys(Path(os.path.abspath(place)) for place in places))


def _libc() -> str | None:
    """Returns name and version of the C library such as `glibc 2.36`, or `None` if it is not the GNU C library."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None


def _check_libc(found: str | None) -> None:
    needed = ".".join(str(part) for part in GLIBC)
    if not found or not found.startswith("glibc "):
        raise DoorbellError(
            "this Python does not use the GNU C library, which doorbell needs: use an image with glibc, such as"
            " python:3-slim instead of python:3-alpine"
        )
    if tuple(int(part) for part in found.split()[1].split(".")[:2]) < GLIBC:
        raise DoorbellError(
            f"{found} is older than {needed}, which doorbell needs: use Debian 10, Ubuntu 20.04, RHEL 8 or later"
        )


def variables(options: Sequence[str] = ()) -> dict[str, str]:
    """Returns the variables with which programs find the software RNIC.

    `options` are options of `doorbell env`, such as `["--fault", "drop=0.01,seed=7"]`. The values of LD_PRELOAD and
    LD_LIBRARY_PATH keep those of this process. Raises `DoorbellError` for an option that is not allowed.
    """
    return {str(name): str(value) for name, value in json.loads(call(["env", "--json", *options])).items()}


def call(arguments: Sequence[str]) -> str:
    """Runs the command and returns its standard output. Raises `DoorbellError` with the message of a failed command."""
    try:
        done = subprocess.run([command(), *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise DoorbellError(f"{command()} does not start: {error}") from None
    if done.returncode != 0:
        message = done.stderr.strip().split("\n\n")[0].removeprefix("doorbell: ").removeprefix("error: ")
        raise DoorbellError(message or f"doorbell {arguments[0]} ended with status {done.returncode}")
    return done.stdout


def preloaded() -> Path | None:
    """Returns the preloaded library, if this process itself runs on the software RNIC.

    Raises `DoorbellError` if LD_PRELOAD names the library of another installation.
    """
    paths = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    found = [Path(path) for path in paths if Path(path).name == LIBRARY]
    if not found:
        return None
    own = (command().parent.parent / "lib" / LIBRARY).resolve()
    for path in found:
        if own.exists() and path.resolve() != own:
            raise DoorbellError(
                f"two versions of doorbell meet: LD_PRELOAD names {path}, and this Python has {own}. Start Python with"
                f" `{command()} run`, or remove one of them"
            )
    return found[0]
