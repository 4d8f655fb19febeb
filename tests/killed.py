"""Commands that are killed on the way, for tests of what they leave behind."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

LOOK_SECONDS = 0.0002  # between two looks at the temporary output: it grows by some 200 kB in that time


def kill_at_sizes(
    start: Callable[[], subprocess.Popen[bytes]], output: Path, sizes: Iterable[int], old: bytes | None
) -> int:
    """Run a command once for each size, kill it when its temporary output has that many bytes, look at its output.

    Parameters
    ----------
    start : starts a command that writes `output`
    output : holds `old` before and, where the command was killed, afterwards; is absent where `old` is None
    sizes : in bytes

    Returns
    -------
    how many runs were killed; the others were done before, without an error
    """
    killed = 0
    for size in sizes:
        if old is None:
            output.unlink(missing_ok=True)
        else:
            output.write_bytes(old)
        process = start()
        _kill(process, output, size)
        if process.returncode == -signal.SIGKILL:
            killed += 1
            assert (output.read_bytes() if output.exists() else None) == old
        else:
            assert process.returncode == 0
    return killed


def _kill(process: subprocess.Popen[bytes], output: Path, size: int) -> None:
    while process.poll() is None:
        found = [path for path in output.parent.glob(".out*.tmp") if f"-{process.pid}-" in path.name]
        if found and found[0].stat().st_size >= size:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(LOOK_SECONDS)
    process.communicate()
