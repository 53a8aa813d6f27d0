"""An AI agent's run as a row in PostgreSQL."""
