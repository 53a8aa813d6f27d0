"""What agentruns raises.

AgentRunsError
├── UnknownAgent          the name is not registered, or none was given and there is no default
├── InvalidContent        the text, metadata or limits of a request cannot be taken
├── InvalidIdempotencyKey the key is empty, too long or not printable ASCII
├── QueueFull             too many turns of the conversation wait already
├── IdempotencyMismatch   the key was used for another request
├── NotADraft             the draft does not exist in that conversation
├── NotRetryable          the run is not the latest turn, or has not failed
├── OutcomeUnknown        a step began in an earlier attempt and was not recorded as done
├── QuestionChanged       called again, an agent does not ask what it asked before
├── InvalidAnswer         the answer cannot be taken
├── NotWaiting            the run waits for no answer
│   ├── AlreadyAnswered   the question was answered before
│   └── AnotherQuestion   the run waits with a question of another key
├── QuestionExpired       the answer comes too late
└── Superseded            the claim is no longer this worker's (never leaves the worker)

asyncio.CancelledError
└── RunStopped            raised inside agent code when its run is to end
"""

from __future__ import annotations

import asyncio


class AgentRunsError(Exception):
    """Base of every error that callers of agentruns may catch."""


class UnknownAgent(AgentRunsError, LookupError):
    """No agent of that name is registered."""


class InvalidContent(AgentRunsError, ValueError):
    """A message's text is missing, too long or not storable; or the metadata or the limits that
    come with it are none.
    """


class InvalidIdempotencyKey(AgentRunsError, ValueError):
    """An idempotency key is empty, over 255 characters or not printable ASCII."""


class QueueFull(AgentRunsError):
    """As many turns wait in the conversation as `MAX_QUEUED_PER_CONVERSATION` allows."""


class IdempotencyMismatch(AgentRunsError):
    """The idempotency key belongs to a request with another body."""


class NotADraft(AgentRunsError, LookupError):
    """The message is not a draft of that conversation."""


class NotRetryable(AgentRunsError):
    """The run is not a failed (or stopped) run that is its conversation's latest turn."""


class OutcomeUnknown(AgentRunsError):
    """The step of `run.once` may or may not have taken effect, and is not done again by itself."""


class QuestionChanged(AgentRunsError):
    """An agent that was called again does not ask what it asked before: no answer would be true."""


class InvalidAnswer(AgentRunsError, ValueError):
    """An answer is too long, or not what JSON and PostgreSQL carry as it is."""


class NotWaiting(AgentRunsError):
    """The run waits for no answer."""


class AlreadyAnswered(NotWaiting):
    """The question was answered before."""


class AnotherQuestion(NotWaiting):
    """The run waits with a question of another key."""


class QuestionExpired(AgentRunsError):
    """The question's time is over."""


class Superseded(AgentRunsError):
    """The run is no longer this worker's: it ended, or its claim was never this one."""


class RunStopped(asyncio.CancelledError):
    """The run is to end: a stop, a timeout, a lost lease or a shutdown. Reaches agents only."""
