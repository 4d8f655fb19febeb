"""Run ckpttool under an audit hook that ends the process, with code 99, at what a checkpoint must never cause.

Started by test_no_execution.py with one JSON argument: `arguments` of the command line, the only `folders` where files
may be opened, `outputs` where files may be made, and `modules` that no one may import since the checkpoint names them.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from typing import Any, NoReturn

CAUGHT = 99
FORBIDDEN = (
    "pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.spawn",
    "pty.spawn", "socket.connect", "socket.getaddrinfo", "urllib.Request", "webbrowser.open",
)  # fmt: skip
CHANGES = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate", "os.chmod")
# They load .pyc files by marshal.loads; in Python 3.13 it is the second of them that calls it.
IMPORT_SYSTEM = ("<frozen importlib._bootstrap_external>", "<frozen importlib._bootstrap>")


def stop(event: str, about: object) -> NoReturn:
    """Say what happened and end at once: an exception could be caught on its way."""
    os.write(2, f"caught: {event} {about!r}\n".encode("utf-8", "backslashreplace"))
    os._exit(CAUGHT)


def inside(path: Any, folders: list[str]) -> bool:
    """Whether a path, as an audit event gives it, lies in one of the folders."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return True  # a file descriptor, opened before
    real = os.path.realpath(os.fsdecode(path))
    return any(real == folder or real.startswith(folder + os.sep) for folder in folders)


def watch(folders: list[str], outputs: list[str], modules: list[str]) -> None:
    """Install the hook; it cannot be taken off."""
    own = [*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *sys.path]
    own.append(os.path.join(sys.prefix, "pyvenv.cfg"))
    readable = [os.path.realpath(folder) for folder in (*folders, *outputs, *own, os.devnull) if folder]
    writable = [os.path.realpath(folder) for folder in (*outputs, os.devnull)]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            stop(event, arguments)
        elif event in ("marshal.loads", "marshal.load"):
            if sys._getframe(1).f_code.co_filename not in IMPORT_SYSTEM:
                stop(event, sys._getframe(1).f_code.co_filename)
        elif event == "ctypes.dlopen":
            if arguments[0] is not None:  # None is this process itself, which NumPy asks for
                stop(event, arguments)
        elif event == "import":
            if str(arguments[0]).partition(".")[0] in modules:
                stop(event, arguments[0])
        elif event == "open":
            writes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not inside(arguments[0], writable if writes else readable):
                stop(event, arguments)
        elif event in CHANGES:
            if not all(inside(path, writable) for path in arguments):
                stop(event, arguments)

    sys.addaudithook(hook)


def main() -> int:
    """Run the command line as the JSON in the first argument says."""
    job = json.loads(sys.argv[1])
    sys.dont_write_bytecode = True
    import h5py  # noqa: F401  before the hook: importing h5py asks `uname`, whatever the file

    watch(job["folders"], job["outputs"], job["modules"])
    from ckpttool.cli.main import run

    return run(job["arguments"])


if __name__ == "__main__":
    sys.exit(main())
