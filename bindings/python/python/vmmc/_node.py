"""Attaching, and bringing up a node when none runs and the program `vmmc` is not installed: this
package can be the node too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Optional

from . import _vmmc
from ._errors import NoNode

# A node that was started this way ends after this many seconds without processes.
_LINGER_S = 60
# How long it may take to come up, and how often we look.
_START_S = 10.0
_LOOK_S = 0.01


def attach(node: Optional[str] = None, *, start: bool = True, timeout: Optional[float] = None) -> _vmmc.Session:
    """Attaches to the user's node (default: $VMMC_NODE, else "default"), starting it when none
    runs.
    """
    try:
        return _vmmc.attach(node, start=start, timeout=timeout)
    except NoNode:
        # $VMMC_BIN was named and did not work: say so instead of doing something else.
        if not start or os.environ.get("VMMC_BIN"):
            raise
    name = node or os.environ.get("VMMC_NODE") or "default"
    return _start(name, timeout)


def _start(name: str, timeout: Optional[float]) -> _vmmc.Session:
    command = [sys.executable, "-m", "vmmc", "node", "run", "--detach", "--name", name, "--linger-s", str(_LINGER_S)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/")
    assert child.stderr is not None
    end = time.monotonic() + _START_S
    while True:
        try:
            session = _vmmc.attach(name, start=False, timeout=timeout)
            child.stderr.close()
            # It runs on without us; nobody is to wait for it.
            child.returncode = 0
            return session
        except NoNode:
            # One that lost the race against another starter ends; the other one's comes up.
            ended = child.poll()
            if time.monotonic() > end:
                said = child.stderr.read().decode(errors="replace").strip() if ended is not None else "it runs and does not answer"
                raise NoNode(f"`{' '.join(command)}` did not bring up the node within {_START_S:.0f} s: {said}") from None
            time.sleep(_LOOK_S)
