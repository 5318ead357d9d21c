"""The installation, and sentences about wrong ones."""

import os
import shutil
import subprocess
import sys

import pytest

import doorbell
from doorbell import _installed


def test_the_command_of_this_environment_is_found():
    done = subprocess.run([doorbell.command(), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"doorbell {doorbell.version()}\n"
    same = subprocess.run([sys.executable, "-m", "doorbell", "--version"], capture_output=True, text=True, check=True)
    assert same.stdout == done.stdout


def test_variables_name_the_library_of_this_environment():
    library = doorbell.variables()["LD_PRELOAD"].split(":")[0]
    assert os.path.samefile(library, doorbell.command().parent.parent / "lib" / _installed.LIBRARY)
    assert doorbell.variables(["--fault", "drop=0.5,seed=7"])["DOORBELL_FAULT"] == "drop=0.5,seed=7"


def test_options_that_are_not_allowed_are_named():
    with pytest.raises(doorbell.DoorbellError, match='fault option drop is "7"; allowed is a share') as caught:
        doorbell.variables(["--fault", "drop=7"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "libc, remedy",
    [(None, "python:3-slim instead of"), ("glibc 2.27", "glibc 2.27 is older than 2.28, which doorbell needs: use")],
)
def test_other_c_libraries_are_named(libc, remedy):
    with pytest.raises(doorbell.DoorbellError, match=remedy):
        _installed._check_libc(libc)
    _installed._check_libc("glibc 2.28")


def test_two_versions_are_named(monkeypatch, tmp_path):
    other = tmp_path / _installed.LIBRARY
    other.write_bytes(b"")
    monkeypatch.setenv("LD_PRELOAD", f"/usr/lib/other.so:{other}")
    with pytest.raises(doorbell.DoorbellError, match="two versions of doorbell meet: LD_PRELOAD names .*or remove one"):
        doorbell.preloaded()


def test_a_path_with_a_space_is_named(tmp_path):
    for folder in ("bin", "lib"):
        (tmp_path / "a b" / folder).mkdir(parents=True)
    own = doorbell.command()
    copy = shutil.copy2(own, tmp_path / "a b/bin")
    shutil.copy2(own.parent.parent / "lib" / _installed.LIBRARY, tmp_path / "a b/lib")
    done = subprocess.run([copy, "run", "--", "true"], capture_output=True, text=True)
    assert done.returncode == 1 and "its path must have no space or colon" in done.stderr, done


def test_the_home_may_be_read_only():
    environment = {**os.environ, "HOME": "/proc/self"}
    words = [doorbell.command(), "run", "--", sys.executable, "-c", "import doorbell; print(doorbell.preloaded())"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip().endswith(_installed.LIBRARY)


def test_programs_need_no_libibverbs_of_the_system():
    loaded = "import ctypes; ctypes.CDLL('libibverbs.so.1'); print(open('/proc/self/maps').read())"
    words = [doorbell.command(), "run", "--", sys.executable, "-c", loaded]
    maps = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libibverbs.so" in line}
    assert found == {os.path.realpath(doorbell.command().parent.parent / "lib/doorbell/libibverbs.so.1")}
