"""The version, which pyproject.toml and each run's claim take from here."""

__version__ = "0.1.0"
