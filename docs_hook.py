"""Adds the pages that stand outside docs/ to the site, and leaves out what needs an address while there is none."""

from __future__ import annotations

import re
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
"""Files of the repository that are pages of the site, and under which name."""

_LINK = re.compile(r"(?<=\]\()[^):#\s]+")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that stand outside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_led((ROOT / source).read_text(), ROOT / source)))
    return files


def on_post_build(config: Any) -> None:
    """Removes the sitemap, which lists full addresses, if mkdocs.yml has no `site_url`."""
    if not config.site_url:
        for sitemap in Path(config.site_dir).glob("sitemap.xml*"):
            sitemap.unlink()


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links that leave docs/ to the pages that stand for those files."""
    return _led(markdown, ROOT / "docs" / page.file.src_uri)


def _led(text: str, source: Path) -> str:
    def led(link: re.Match[str]) -> str:
        target = (source.parent / link[0]).resolve()
        path = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else link[0]
        return PAGES.get(path) or path.removeprefix("docs/")

    return _LINK.sub(led, text)
