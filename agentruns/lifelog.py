"""How a worker's log looks: lines for people, a line of progress on a terminal, or JSON lines."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any, TextIO

LINE = "%(asctime)s %(levelname)s %(message)s"
RUN_ID = re.compile(r"\brun ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
CLEAR = "\r\x1b[K"
REDRAW_SECONDS = 1.0


class JsonLines(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, and `run_id` where one is
    named.
    """

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if (named := RUN_ID.search(message)) is not None:
            said["run_id"] = named[1]
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


class Terminal(logging.StreamHandler[TextIO]):
    """Lines for people, above one line of progress that is drawn anew."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._progress = ""
        self._drawn = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        with self.lock:  # type: ignore[union-attr]
            if self._progress:
                self.stream.write(CLEAR)
            super().emit(record)
            self._draw()

    def progress(self, text: str) -> None:
        """Show this as the last line; at most once a second."""
        now = time.monotonic()
        if text == self._progress or now - self._drawn < REDRAW_SECONDS:
            return
        with self.lock:  # type: ignore[union-attr]
            self._progress, self._drawn = text, now
            self._draw()

    def end(self) -> None:
        with self.lock:  # type: ignore[union-attr]
            if self._progress:
                self.stream.write(CLEAR)
                self.stream.flush()
            self._progress = ""

    def _draw(self) -> None:
        if self._progress:
            self.stream.write(f"{CLEAR}{self._progress}")
            self.stream.flush()
