"""The commands ``verify``, ``demo`` and ``broker`` of ``sparkonce``."""
