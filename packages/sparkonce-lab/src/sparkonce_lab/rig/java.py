"""Finds the Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from sparkonce.errors import ConfigurationError

MINIMUM_JAVA = 17
_JAVA_STEP = f"install Java {MINIMUM_JAVA} or newer and put it on PATH, or set JAVA_HOME to it"


def find_java() -> str:
    """Finds a Java for Kafka and Spark, version 17 or later, in JAVA_HOME or else on PATH.

    Raises:
        ConfigurationError: If there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise ConfigurationError(f"There is no java {where}.", next_step=_JAVA_STEP)
    major = _java_major(java)
    if major < MINIMUM_JAVA:
        raise ConfigurationError(f"{java} is Java {major}; Java {MINIMUM_JAVA} is needed.", next_step=_JAVA_STEP)
    return java


@lru_cache
def _java_major(java: str) -> int:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{java} does not run: {error}", next_step=_JAVA_STEP) from error
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        raise ConfigurationError(f"{java} -version reports no version: {answer.stderr.strip()}.", next_step=_JAVA_STEP)
    return int(found[1])
