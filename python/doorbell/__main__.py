"""`python -m doorbell` is the command `doorbell` of this installation."""

from __future__ import annotations

import os
import sys

from doorbell import DoorbellError, command


def main() -> None:
    """Replaces this process by the command."""
    try:
        program = str(command())
    except DoorbellError as error:
        sys.exit(f"doorbell: {error}")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
