"""A project unlike the demo: other user model, schema, time zone, routers and default keys."""
