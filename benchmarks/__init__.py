"""How fast agentruns is, beside procrastinate, Redis Streams and the bare database.

`python -m benchmarks` runs everything and prints one table; each module runs alone too, for example
`python -m benchmarks.queue`. Needs the extra `bench`.
"""
