"""What the agent `story` says, as every client has to have it in the end."""

from __future__ import annotations

TEXT = (
    "Once\u2028upon \x85 a \x0b time there was a run that would not end before the gate. "
    "It opened 😀."
)
ARGUMENTS = [("search", {"q": "漢字"}), ("add", {"a": 1})]
RESULTS = ['{"found": ["\\u2028", null, 1.5]}', "2"]
