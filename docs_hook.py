"""What the site has besides the files in docs/: other pages, the reference of the commands, what search prefers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent
PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "tests/README.md": "tests.md",
}
"""Files of the repository that are pages of the site, and their names there."""

SEARCH: dict[str, float] = {
    **dict.fromkeys(("install", "troubleshooting"), 4.0),
    **dict.fromkeys(("kafka", "operations", "rolling", "benchmark", "readers", "formats", "scheduled"), 2.0),
    **dict.fromkeys(("versions", "watching", "api", "api-sinks", "api-authors", "changelog", "cli"), 0.3),
    "mistakes": 0.1,
    "notebooks": 0.5,  # whose title is taken for "not"
    # The evidence is for those who follow its links; troubleshooting has each error, with its remedy.
    **dict.fromkeys(("found", "simulation", "crashes", "every-example", "tests", "contributing", "readme"), 0.0),
    "api-errors": 0.0,
}
"""How much more, or less, search prefers a page; 0 leaves it out."""

_LINK = re.compile(r"(?<=\]\()[^):#\s]+")
_CLI = """# Command line

`sparkonce --help` shows the same. [Tools](tools.md) explains the commands for operators, with examples.

"""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside docs/, and the commands' reference."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_led((ROOT / source).read_text(), ROOT / source)))
    files.append(File.generated(config, "cli.md", content=_CLI + "\n".join(_commands())))
    return files


def on_post_build(config: Any) -> None:
    """Removes the sitemap, which lists full addresses, if mkdocs.yml has no `site_url`."""
    if not config.site_url:
        for sitemap in Path(config.site_dir).glob("sitemap.xml*"):
            sitemap.unlink()


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links out of docs/ to the pages that stand for those files, and says how search ranks the page."""
    boost = SEARCH.get(page.file.src_uri.removesuffix(".md"))
    if boost is not None:
        page.meta["search"] = {"boost": boost} if boost else {"exclude": True}
    return _led(markdown, ROOT / "docs" / page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Gives each cell of a table its column's name, which a phone shows instead of the table's head."""

    def labeled(table: re.Match[str]) -> str:
        heads = [re.sub(r"<[^>]+>", "", head).replace('"', "") for head in re.findall(r"<th>(.*?)</th>", table[0])]
        cells = iter(heads * table[0].count("<tr>"))
        return re.sub(r"<td>", lambda _: f'<td data-head="{next(cells, "")}">', table[0])

    return re.sub(r"<table>.*?</table>", labeled, html, flags=re.S)


def _commands() -> Iterator[str]:
    """Yields the reference of every command, from the commands themselves."""
    from typer.main import get_command

    from sparkonce.cli.main import app

    root: Any = get_command(app)
    context = root.make_context("sparkonce", [], resilient_parsing=True)
    for name in root.list_commands(context):
        yield from _command(root.get_command(context, name), f"sparkonce {name}", context, 2)


def _command(command: Any, path: str, parent: Any, level: int) -> Iterator[str]:
    if command.hidden:
        return
    context = command.make_context(path, [], parent=parent, resilient_parsing=True)
    yield f"{'#' * level} {path}\n"
    example = re.compile(r"For example:\s+(sparkonce (?:.+\n?)+)")
    yield example.sub(lambda one: f"For example:\n\n    {' '.join(one[1].split())}\n", command.help or "") + "\n"
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from _command(command.get_command(context, name), f"{path} {name}", context, level + 1)
        return
    usage, rows = [path], []
    for one in command.get_params(context):
        if one.name == "help" or getattr(one, "hidden", False):
            continue
        names = ", ".join(f"`{opt}`" for opt in (*one.opts, *one.secondary_opts))
        if one.param_type_name == "argument":
            name = (one.metavar or one.name).upper() + ("..." if one.nargs < 0 else "")
            usage.append(name if one.required else f"[{name}]")
            names = f"`{name}`"
        given = getattr(one.default, "value", one.default)
        given = given if isinstance(given, (str, int, float)) and given is not False else ""
        text = " ".join((getattr(one, "help", None) or "").split()).replace("|", r"\|").replace("<", "&lt;")
        rows.append(f"| {names} | {text}{f' Default: `{given}`.' if given != '' else ''} |")
    yield f"```text\n{' '.join(usage)}{' [OPTIONS]' if rows else ''}\n```\n"
    if rows:
        yield "\n".join(["| option | meaning |", "| --- | --- |", *rows]) + "\n"


def _led(text: str, source: Path) -> str:
    def led(link: re.Match[str]) -> str:
        target = (source.parent / link[0]).resolve()
        path = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else link[0]
        return PAGES.get(path) or path.removeprefix("docs/")

    return _LINK.sub(led, text)
