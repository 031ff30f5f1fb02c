"""``sparkonce new``: creates a first project, the quick start in the README.

Typer reads the annotations when the command runs, so their types must be imported at runtime.
"""

import shlex
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from sparkonce.errors import ConfigurationError

_GIT_IGNORES = (".venv/", "__pycache__/", "checkpoint/", "spark-warehouse/")
_README = """# {name}

Counts orders by customer, exactly once: `job.py`.

```
python3 -m venv .venv && . .venv/bin/activate
CLONE=/path/to/sparkonce   # it is not on a package index yet
pip install -r requirements.txt $CLONE $CLONE/packages/sparkonce-lab
sparkonce broker up --port 9092
python job.py
```

Run it again, or kill it in the middle: the totals stay right. With your own Kafka: `BROKER=host:9092 python job.py`.

With spark-submit, which needs Kafka's connector as an option:

```
spark-submit --packages "$(python -c 'import sparkonce; print(sparkonce.spark_packages())')" job.py
```

`checkpoint/` is the job's memory. Without it the job counts all orders again.
"""


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The project's folder. Created if it does not exist.")
    ],
) -> None:
    """Create a first project: a job that reads Kafka and writes Kafka exactly once, with everything it needs."""
    written = {
        "job.py": files("sparkonce.cli").joinpath("project", "job.py").read_text(encoding="utf-8"),
        "README.md": _README.format(name=folder.absolute().name),
        "requirements.txt": f"pyspark=={version('pyspark')}\n",
        ".gitignore": "".join(f"{one}\n" for one in _GIT_IGNORES),
    }
    there = [name for name in written if (folder / name).exists()]
    if there:
        raise ConfigurationError(f"{folder} has {', '.join(there)} already.", next_step="Name another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error}.", next_step="Name another folder.") from error
    typer.echo(f"Wrote {', '.join(written)} to {folder}.")
    typer.echo(f"Next: cd {shlex.quote(str(folder))}, sparkonce broker up --port 9092, and python job.py")
