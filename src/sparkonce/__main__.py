"""``python -m sparkonce``: the command where its folder is not on PATH."""

from sparkonce.cli.main import app

app(prog_name="python -m sparkonce")
