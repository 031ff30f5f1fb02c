"""``python -m sparkonce``: runs the command even if its folder is not on PATH."""

from sparkonce.cli.main import app

app(prog_name="python -m sparkonce")
