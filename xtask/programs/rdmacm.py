"""rdma-core's tests of librdmacm, on a device that has no network interface.

Usage: rdmacm.py FOLDER_OF_TESTS [options of run_tests.py]

The tests look for the address of the device in sysfs, and leave everything out that has none there. A
software RNIC is reached by any address of the machine, so they are told one; nothing else is changed.
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


def with_address(self, dev, port, gid_index):
    self.args.append([dev, port, gid_index, "127.0.0.1", None])


RDMATestCase._get_ip_mac = with_address
parser.parse_args()
unittest.main(module="tests.test_rdmacm")
