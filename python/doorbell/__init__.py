"""Doorbell in Python: a software RNIC for tests, records of measurements, and packets of RDMA.

`doorbell.testing` is a plugin of pytest, `doorbell.records` reads the JSON of studies and benches, and `doorbell.wire`
computes and reads packets. This module finds the command `doorbell` of this installation.
"""

from __future__ import annotations

from doorbell._installed import DoorbellError, command, preloaded, variables, version

__all__ = ["DoorbellError", "command", "preloaded", "variables", "version"]
