"""``python -m sparkonce``: the command, for when its folder is not on PATH."""

from sparkonce.cli.main import app

app(prog_name="python -m sparkonce")
