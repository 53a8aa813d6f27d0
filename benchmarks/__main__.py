"""All benchmarks on one server, one after the other, and one table."""

from __future__ import annotations

import argparse
import os
import platform
import time
from importlib.metadata import version

from . import claims, latency, queue, sizes, streams, web
from .plot import plot
from .results import OUT, save, table
from .server import ROOT, SETTINGS, Server

IMAGES = ROOT / "docs" / "images"
BENCHMARKS = {
    "claims": claims,
    "queue": queue,
    "latency": latency,
    "streams": streams,
    "web": web,
    "sizes": sizes,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds of each")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual size")
    parser.add_argument("--only", help="names, with commas: " + ", ".join(BENCHMARKS))
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(BENCHMARKS)
    began, results = time.time(), []
    with Server() as server:
        for name in names:
            print(f"== {name} ({time.time() - began:.0f} s)", flush=True)
            module = BENCHMARKS[name]
            results += module.run(server, rounds=options.rounds, scale=options.scale)
            save(
                results,
                "all",
                server=server.version,
                settings=SETTINGS,
                scale=options.scale,
                rounds=options.rounds,
                began=began,
                seconds=time.time() - began,
                load=os.getloadavg(),
                cores=os.cpu_count(),
                python=platform.python_version(),
                packages={name: version(name) for name in ("django", "psycopg", "procrastinate")},
            )
    print(table(results))
    (OUT / "all.md").write_text(table(results) + "\n")
    plot(results, OUT / "streams.png")
    if options.scale >= 1:
        plot(results, IMAGES / "streams.png")


if __name__ == "__main__":
    main()
