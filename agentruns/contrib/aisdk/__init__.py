"""The Vercel AI SDK: `useChat` starts, resumes and stops runs as it comes.

UI message stream, version 1, over HTTP; and the WebSocket transport of AI SDK 7.
"""
