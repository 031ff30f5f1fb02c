"""The version of sparkonce, used by pyproject.toml and recorded in each run's claim."""

__version__ = "0.1.0"
