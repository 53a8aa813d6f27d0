"""A worker process.

Rungs 2 and 3: acquire a slot, claim, run, drain. The main thread supervises and never runs agent
code: it judges leases, timeouts and cancellations that are ignored, cuts off statements that hang,
and hears signals. Each loop that needs the database has a thread and a connection of its own;
agents' coroutines share one event loop in another thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from . import wake
from .agents import agent_names, get_agent
from .claim import Claimed
from .claimer import Claimer
from .conf import Config
from .execution import Cause, Execution, Outcome
from .heart import Heart
from .host import Host
from .hub import Hub
from .presence import Presence, State
from .sweeper import Sweeper
from .writer import Writer

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2
FROZEN_SECONDS = 2.0
"""A tick that comes this late means that the whole process stood still; with short leases, an
eighth of one.
"""
THAW_SECONDS = 5.0
"""How long a process that stood still may take to ask the database before it judges its leases."""
UNWIND_SECONDS = 2.0
"""What code gets to unwind when the drain's budget is spent."""
LAST_SECONDS = 9.0
"""What the endings get after that, with the database out of reach."""
REMEMBERED_STOPS = 256
STALLED_SECONDS = 5.0
"""A supervising thread that has not looked for this long holds no run to its limits."""
BLOCKED_SECONDS = 3.0
"""An event loop that gives no sign of life for this long is named in the log."""


def new_worker_id() -> str:
    """`host:pid:suffix`; the suffix tells two workers apart whose host and pid are equal."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Worker:
    """Claims and runs until it is told to end, then drains."""

    def __init__(
        self,
        config: Config,
        *,
        agents: Sequence[str] | None = None,
        worker_id: str | None = None,
        reaps: bool = True,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.worker_id = worker_id or new_worker_id()
        self.agents = sorted(agents if agents is not None else agent_names())
        self._on_tick = on_tick
        self._told = 0
        self._poke_out, self._poke_in = socket.socketpair()
        self._poke_in.setblocking(False)
        self._lock = threading.Lock()
        self._executions: dict[UUID, Execution] = {}
        """By claim token: a run that is answered at once may be back before the code that asked has
        returned.
        """
        self._ticked = time.monotonic()
        self._thawed = 0.0
        self._frozen_seconds = min(FROZEN_SECONDS, config.LEASE_SECONDS / 8)
        self._early_stops: deque[UUID] = deque(maxlen=REMEMBERED_STOPS)
        self._blocked_since: float | None = None
        self._blocked_named = False
        lease = timedelta(seconds=config.LEASE_SECONDS)
        limit = min(10.0, config.LEASE_SECONDS / 3)
        self.writer = Writer(
            floor=config.FLUSH_FLOOR_SECONDS,
            ceiling=config.FLUSH_SECONDS,
            limit=limit,
            on_ended=self._release,
        )
        self.host = Host(touch=self.writer.touch, on_returned=self._returned)
        presence = Presence(
            self.worker_id,
            self.agents,
            slots=config.CONCURRENCY,
            reaps=reaps,
            lifetime=lease,
            state=lambda: State(len(self._executions), draining=self._told > 0),
        )
        self.heart = Heart(
            self.executions,
            on_superseded=self._superseded,
            presence=presence,
            every=config.HEARTBEAT_SECONDS,
            lease=lease,
            limit=limit / 2,
        )
        self.claimer = Claimer(
            self.agents,
            self.worker_id,
            free_slots=self.free_slots,
            on_claimed=self._claimed,
            lease=lease,
            poll=config.POLL_SECONDS,
            limit=limit,
        )
        self.hub = Hub(
            {wake.RUN_READY: self.claimer.wake, wake.RUN_STOP: self._stop_hinted},
            alias=config.listen_alias,
        )
        self.sweeper = (
            Sweeper(config, held=self.held, enforced=self.enforced, limit=limit) if reaps else None
        )
        self._lanes = [self.writer.lane, self.heart.lane, self.claimer.lane]
        if self.sweeper:
            self._lanes.append(self.sweeper.lane)

    def executions(self) -> list[Execution]:
        with self._lock:
            return list(self._executions.values())

    def held(self) -> list[UUID]:
        with self._lock:
            return [execution.fence.run_id for execution in self._executions.values()]

    def enforced(self) -> list[UUID]:
        """The runs that this worker holds to their limits: none while its supervising thread
        stands still.
        """
        return self.held() if time.monotonic() - self._ticked < STALLED_SECONDS else []

    @property
    def ticked(self) -> float:
        """When the supervising thread last looked at everything, by the monotonic clock."""
        return self._ticked

    @property
    def is_draining(self) -> bool:
        return self._told > 0

    def free_slots(self) -> int:
        return self.config.CONCURRENCY - len(self._executions)

    def end(self) -> int:
        """Tell the worker to end, from a signal handler or another thread; how often it was
        told.
        """
        self._told += 1
        with contextlib.suppress(BlockingIOError):  # it has been poked often enough
            self._poke_in.send(b".")
        return self._told

    def run(self) -> bool:
        """Work until told to end, then drain; whether everything that ran has ended in the
        database.
        """
        logger.info(
            "worker %s: %d slots, agents %s",
            self.worker_id,
            self.config.CONCURRENCY,
            ", ".join(self.agents),
        )
        self._start()
        while not self._told:
            self._tick()
        return self._drain()

    def _start(self) -> None:
        self.writer.start()
        self.host.start()
        self.heart.start()
        self.hub.start()
        self.claimer.start()
        if self.sweeper:
            self.sweeper.start()

    def _tick(self) -> None:
        """One look at everything that must not wait for the database."""
        readable, _, _ = select.select([self._poke_out], [], [], TICK_SECONDS)
        if readable:
            self._poke_out.recv(64)
        now = time.monotonic()
        if now - self._ticked > TICK_SECONDS + self._frozen_seconds:
            logger.warning(
                "the process stood still for %.1f s: asking the database which runs are left",
                now - self._ticked,
            )
            self._thawed = now
            self.heart.beat_now()
        self._ticked = now
        for lane in self._lanes:
            if lane.enforce():
                logger.warning(
                    "%s: a statement outlived its limit of %.1f s and was cut off",
                    lane.name,
                    lane.limit,
                )
        for execution in self.executions():
            self._judge(execution, now)
        self._watch_loop(now)
        self._on_tick()

    def _judge(self, execution: Execution, now: float) -> None:
        if not execution.ended:
            self._judge_claim(execution, now)
        if (
            execution.interrupted is not None
            and now - execution.interrupted > self.config.STOP_GRACE_SECONDS
        ):
            self._fence_off(execution)

    def _judge_claim(self, execution: Execution, now: float) -> None:
        if (
            now > execution.lease_until
            and self._may_judge_leases(now)
            and execution.interrupt(Cause.LEASE_LOST)
        ):
            logger.error("%s: the lease could not be renewed; its code is being stopped", execution)
        limits = execution.limits
        longest = min(self.config.RUN_TIMEOUT_SECONDS, limits.run_seconds or math.inf)
        if now - execution.started > longest and execution.interrupt(Cause.TIMEOUT):
            logger.warning("%s: timed out after %g s", execution, longest)
        if (
            limits.silence_seconds is not None
            and execution.silence(now, since=self._thawed) > limits.silence_seconds
            and execution.interrupt(Cause.SILENT)
        ):
            logger.warning("%s: silent for %g s", execution, limits.silence_seconds)

    def _may_judge_leases(self, now: float) -> bool:
        """A process that was frozen may still hold its runs: the reaper waits a grace longer. It
        asks first.
        """
        return self.heart.last_beat_began >= self._thawed or now > self._thawed + THAW_SECONDS

    def _fence_off(self, execution: Execution) -> None:
        """End the run without its code, which does not heed its cancellation."""
        if execution.returned or execution.ignored:
            return
        execution.ignored = True
        assert execution.cause is not None
        logger.error(
            "%s ignores its cancellation (%s) since %g s: the run ends without it, its slot stays "
            "taken until the code returns",
            execution,
            execution.cause.value,
            self.config.STOP_GRACE_SECONDS,
        )
        if not execution.ended:
            execution.ending_composed = True
            self.writer.end(execution)

    def _watch_loop(self, now: float) -> None:
        if self.host.ping():
            self._blocked_since, self._blocked_named = now, False
        elif (
            self._blocked_since is not None
            and now - self._blocked_since > BLOCKED_SECONDS
            and not self._blocked_named
        ):
            self._blocked_named = True
            logger.warning(
                "%s blocks the event loop of all agents: use await, or a plain function",
                self.host.busy_with(),
            )

    def _claimed(self, claims: Sequence[Claimed], lease_until: float) -> None:
        executions = [
            Execution(claimed, get_agent(claimed.agent), lease_until=lease_until)
            for claimed in claims
        ]
        with self._lock:
            self._executions.update((each.fence.token, each) for each in executions)
            stopped = [c.run_id for c in claims if c.run_id in self._early_stops]
        self.host.execute(executions)
        if stopped:
            self.heart.beat_now(stopped)

    def _returned(self, execution: Execution, outcome: Outcome) -> None:
        execution.come_back(outcome)
        if execution.ended:
            self._release([execution])
        else:
            self.writer.end(execution)

    def _superseded(self, execution: Execution) -> None:
        execution.supersede()
        self._release([execution])

    def _release(self, executions: Sequence[Execution]) -> None:
        """Free the slots of those that have ended and whose code has returned."""
        with self._lock:
            for execution in executions:
                if execution.ended and execution.returned:
                    self._executions.pop(execution.fence.token, None)
        self.claimer.slot_freed()

    def _stop_hinted(self, payload: str | None) -> None:
        if payload is None:
            self.heart.beat_now()
            return
        with self._lock:
            held = {execution.fence.run_id for execution in self._executions.values()}
            hinted = wake.ids_in(payload)
            ours = [run_id for run_id in hinted if run_id in held]
            # One that is being claimed at this moment may be ours in the next.
            self._early_stops.extend(run_id for run_id in hinted if run_id not in held)
        if ours:
            self.heart.beat_now(ours)

    def _drain(self) -> bool:
        """Stop claiming, let runs end within the budget, end the rest; whether all of them
        ended.
        """
        running = len(self._unended())
        logger.info(
            "worker %s: draining, %d runs, up to %g s",
            self.worker_id,
            running,
            self.config.DRAIN_SECONDS,
        )
        self.claimer.stop()
        self.heart.beat_now()  # it is seen to be draining
        if self.sweeper:
            self.sweeper.close()
        drained = self._until(self._is_drained, seconds=self.config.DRAIN_SECONDS) or self._until(
            self._is_cut_short, seconds=LAST_SECONDS
        )
        left = self._unended()
        for execution in left:
            logger.error("%s could not be ended: a reaper will end it", execution)
        self.heart.close()
        self.hub.close()
        stored = self.writer.close(timeout=1.0)
        self.heart.join(0.5)
        logger.info("worker %s: ended", self.worker_id)
        return drained and stored and not left

    def _unended(self) -> list[Execution]:
        return [execution for execution in self.executions() if not execution.ended]

    def _is_drained(self) -> bool:
        return self.claimer.is_done and not self._unended()

    def _is_cut_short(self) -> bool:
        """Whether all has ended, after telling what runs (an adopted run may come late) to end."""
        unwound = time.monotonic() - min(UNWIND_SECONDS, self.config.STOP_GRACE_SECONDS)
        for execution in self._unended():
            execution.interrupt(Cause.SHUTDOWN)
            if execution.interrupted is not None and execution.interrupted < unwound:
                self._fence_off(execution)
        return self._is_drained()

    def _until(self, condition: Callable[[], bool], *, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._tick()
        return True
