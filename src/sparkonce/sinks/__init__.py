"""Sinks: one folder for each external system, and the abstract sink that anyone can implement."""
