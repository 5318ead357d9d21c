"""rdma-core's tests of librdmacm, on a device that has no network interface.

Usage: rdmacm.py FOLDER_OF_TESTS [options of run_tests.py]

The tests search the address of the device in sysfs, and skip devices without one. A software RNIC is reached by any
address of the machine, so this script passes one to the tests. It changes nothing else. The address is unique for
each run, since the tests use a fixed port, and multicast groups that depend on the address.
"""

import os
import sys
import unittest
from importlib.machinery import SourceFileLoader

folder = sys.argv.pop(1)
sys.path.insert(0, folder)

from args_parser import parser  # noqa: E402

SourceFileLoader("tests", os.path.join(folder, "__init__.py")).load_module()

from tests.base import RDMATestCase  # noqa: E402


# Process ids have up to 22 bits. These addresses do not collide with addresses that Doorbell chooses, which are lower.
number = os.getpid()
OWN = f"127.{64 | number >> 16}.{number >> 8 & 255}.{number & 255}"


def with_address(self, dev, port, gid_index):
    self.args.append([dev, port, gid_index, OWN, None])


RDMATestCase._get_ip_mac = with_address
parser.parse_args()
unittest.main(module="tests.test_rdmacm")
