"""What the examples share: they run as several real processes, by starting themselves once for each role.

Run without arguments, an example starts its roles, waits for them and fails if one of them fails. Each role attaches to the user's default node, which is started when
none runs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import vmmc

Role = Callable[[vmmc.Session], None]

# No example takes longer than this.
TIME_MAX_S = 60.0


def run(*roles: Role) -> None:
    if sys.argv[1:2] == ["role"]:
        [role] = [role for role in roles if role.__name__ == sys.argv[2]]
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        role(vmmc.attach())
        return
    running = [subprocess.Popen([sys.executable, sys.argv[0], "role", role.__name__]) for role in roles]
    end = time.monotonic() + TIME_MAX_S
    try:
        while any(child.poll() is None for child in running):
            if any(child.poll() for child in running) or time.monotonic() > end:
                break
            time.sleep(0.002)
    finally:
        for child in running:
            child.kill()
    failed = [role.__name__ for role, child in zip(roles, running) if child.wait() != 0]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(f"failed: {otherwise}")
