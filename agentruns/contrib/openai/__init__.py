"""OpenAI's Responses API: the official SDKs start, stream, resume and cancel runs.

`path("v1/", include("agentruns.contrib.openai.urls"))` makes `.../v1` a `base_url` for them.
"""
