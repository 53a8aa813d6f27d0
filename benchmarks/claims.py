"""Pages that one claim touches, in the states that make queues slow. Exact: no clock is involved.

`python -m benchmarks.claims` at full size; `tests/test_claim_plan.py` holds the same at a small one.
"""

from __future__ import annotations
