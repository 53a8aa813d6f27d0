"""Run a module or script that ends when the process that started it is gone.

`python -m project.tether FD TARGET ARGUMENTS…`: FD is the reading end of a pipe whose other end
only the parent holds. However the parent dies, the pipe closes, and SIGTERM ends this process.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    fd, target, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, args=(int(fd),), daemon=True).start()
    sys.argv = [target, *arguments]
    if target.endswith(".py"):
        runpy.run_path(target, run_name="__main__")
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


def _end_with_parent(fd: int) -> None:
    os.read(fd, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
