"""AG-UI 1.0: an `HttpAgent` starts runs and attaches to them.

The client has no cursor and adds what it is sent to what it has. Who attaches is sent the messages
as they stand, then what comes after them.
"""
