from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.avro.limits import DRIVER, EXECUTOR, PROPERTIES, java_options, warn_without_limits


def test_the_setting_is_told_once_in_words_to_copy(caplog: pytest.LogCaptureFixture) -> None:
    def told(
        caplog: pytest.LogCaptureFixture, application: str, master: str, *, driver: bool, executors: str
    ) -> list[str]:
        conf = SimpleNamespace(get=lambda name, default: executors if name == EXECUTOR else default)
        session: Any = SimpleNamespace(
            sparkContext=SimpleNamespace(applicationId=application, master=master, getConf=lambda: conf)
        )
        properties = dict.fromkeys(PROPERTIES, "1") if driver else {}
        jvm = SimpleNamespace(
            java=SimpleNamespace(lang=SimpleNamespace(System=SimpleNamespace(getProperty=properties.get)))
        )
        caplog.clear()
        caplog.set_level(logging.WARNING, "sparkonce")
        warn_without_limits(session, jvm)
        warn_without_limits(session, jvm)
        return [one.getMessage() for one in caplog.records]

    (warning,) = told(caplog, "limits-1", "local[2]", driver=False, executors="")
    assert f"{DRIVER}='{java_options()}'" in warning
    assert EXECUTOR not in warning
    (warning,) = told(caplog, "limits-2", "spark://host:7077", driver=True, executors="-Xlog:gc")
    assert f"{EXECUTOR}='{java_options()}'" in warning
    assert DRIVER not in warning
    assert told(caplog, "limits-3", "yarn", driver=True, executors=java_options()) == []
    assert told(caplog, "limits-4", "local", driver=True, executors="") == []
