"""Runs against a baseline: which cases got slower, which faster, and of which it cannot be told."""
