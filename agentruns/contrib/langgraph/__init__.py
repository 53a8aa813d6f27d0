"""LangGraph's server API: the official SDKs drive threads and their runs.

`path("lg/", include("agentruns.contrib.langgraph.urls"))` makes `.../lg` a `url` for them. A thread
is a conversation, an assistant an agent.
"""
