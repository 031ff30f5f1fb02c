"""What hatchling asks when it builds a package: the README as an index shows it, where relative links lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = r"(?!https?:|mailto:|#)(?=\S+\))"


class Readme(MetadataHookInterface):
    """Gives each relative link of README.md the repository's address, of which `project.urls` is the only place."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the field ``readme``."""
        repository = metadata["urls"]["Repository"]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        pictures = re.sub(rf"(!\[[^\]]*\]\(){_RELATIVE}", rf"\g<1>{repository}/raw/main/", text)
        links = re.sub(rf"(\]\(){_RELATIVE}", rf"\g<1>{repository}/blob/main/", pictures)
        metadata["readme"] = {"content-type": "text/markdown", "text": links}
