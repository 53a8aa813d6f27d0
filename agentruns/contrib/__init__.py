"""Other wires and agent frameworks; each is off until the project includes it."""
