"""What the demo's "Break it" strip can do to the demo's own processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from agentruns.conf import Config

from .control import Request
from .postgres import PostgresServer
from .processes import Children

WEB_SERVER = "web server"
WORKER = "worker"
ANSWER_FIRST_SECONDS = 0.3

SHORT_LEASES = {
    "LEASE_SECONDS": 8,
    "HEARTBEAT_SECONDS": 1,
    "GRACE_SECONDS": 2,
    "REAP_SECONDS": 1,
}
"""So that a lost worker is seen within seconds; a real project has no reason for it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A button: its name on the wire, its title, what it does, and why nothing is lost."""

    name: str
    title: str
    how: str
    why: str


CATALOGUE = (
    Fault(
        "cut",
        "Cut this page's stream",
        "2 s",
        "The run goes on without a viewer. The page names its last event, and gets what follows.",
    ),
    Fault(
        "kill-worker",
        "Kill the worker",
        "SIGKILL",
        "Its lease lapses in a few seconds. Then the other worker ends the run, and what was shown "
        "stays: it was in the journal before it was on this page.",
    ),
    Fault(
        "freeze-worker",
        "Freeze the worker",
        "SIGSTOP",
        "The other worker ends the run when the lease has lapsed. To the one that wakes, its token "
        "opens nothing: it writes no word more, and the run has one ending.",
    ),
    Fault(
        "restart-postgres",
        "Crash PostgreSQL",
        "immediate",
        "What was committed is in its log. Its claim is in the row, so the worker goes on.",
    ),
    Fault(
        "kill-web",
        "Kill the web server",
        "SIGKILL",
        "The run was never in it. The browser names its last event to a process that has never "
        "seen the run, and gets what follows.",
    ),
)


@dataclass(frozen=True, slots=True)
class Saboteur:
    """Sends real signals to the demo's own children, and to nothing else."""

    children: Children
    server: PostgresServer | None
    config: Config

    def act(self, request: Request) -> str:
        deeds: dict[str, Callable[[int | None], str]] = {
            "kill-worker": self._kill_worker,
            "freeze-worker": self._freeze_worker,
            "restart-postgres": lambda _: self._restart_postgres(),
            "kill-web": lambda _: self._kill_web(),
        }
        return deeds[request["fault"]](request.get("pid"))

    def _kill_worker(self, wanted: int | None) -> str:
        pid = self._worker(wanted)
        self.children.kill(pid)
        return f"SIGKILL to worker {pid}. A new one is started in its place."

    def _freeze_worker(self, wanted: int | None) -> str:
        pid = self._worker(wanted)
        # The lease was renewed a moment ago; the last two are for the reaper's round.
        seconds = self.config.LEASE_SECONDS + self.config.GRACE_SECONDS
        seconds += 2 * self.config.REAP_SECONDS + 2
        self.children.freeze(pid, seconds)
        return f"SIGSTOP to worker {pid}; it goes on in {seconds:g} s, long after its lease."

    def _restart_postgres(self) -> str:
        if self.server is None:
            return "The database is that of DATABASE_URL, not the demo's: it is left alone."
        return f"PostgreSQL was crashed, and was back after {self.server.crash():.1f} s."

    def _kill_web(self) -> str:
        (pid,) = self.children.pids(WEB_SERVER)
        threading.Timer(ANSWER_FIRST_SECONDS, self.children.kill, [pid]).start()
        return f"SIGKILL to web server {pid}. A new one takes over its port."

    def _worker(self, wanted: int | None) -> int:
        """Return the wanted worker if it is ours, else any that is."""
        pids = self.children.pids(WORKER)
        return wanted if wanted in pids else pids[0]
