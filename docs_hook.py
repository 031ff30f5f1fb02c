"""What mkdocs does beside its settings: files outside docs/ become pages, addresses come from pyproject.toml."""

from __future__ import annotations

import re
import sys
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
    "THIRD_PARTY.md": "third-party.md",
    "tests/README.md": "tests.md",
}
"""Files of the repository that are pages of the site, and under which name."""

_LINK = re.compile(r"(?<=\]\()[^):#\s]+")


def on_config(config: Any) -> Any:
    """Takes `site_url` and `repo_url` from `[project.urls]`, the one place where they are written down."""
    if sys.version_info >= (3, 11):
        import tomllib

        urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
        known = {name.lower(): url for name, url in urls.items()}
        config.site_url = known.get("documentation") or config.site_url
        config.repo_url = known.get("source") or known.get("repository") or config.repo_url
        # mkdocs takes the name from the address earlier than this, and would show "None".
        config.repo_name = config.repo_name or (config.repo_url or "").rstrip("/").rpartition("/")[2]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that stand outside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_led((ROOT / source).read_text(), ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links that leave docs/ to the pages that stand for those files."""
    return _led(markdown, ROOT / "docs" / page.file.src_uri)


def _led(text: str, source: Path) -> str:
    def led(link: re.Match[str]) -> str:
        target = (source.parent / link[0]).resolve()
        path = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else link[0]
        return PAGES.get(path) or path.removeprefix("docs/")

    return _LINK.sub(led, text)
