"""The dashboard and the alert rules of docs/watching, evaluated by a real Prometheus that scrapes real metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from eventually import LIMIT_S, eventually
from sparkonce import serve_metrics
from sparkonce.errors import TransactionLostError
from sparkonce.protocol.state import Phase, Writing
from sparkonce.watch import figures as watch_figures
from sparkonce.watch.figures import Figures
from sparkonce_lab.rig.process import free_port
from tidy.sources import ROOT
from unit.test_watch_figures import Run, handle, progress

FOLDER = ROOT / "docs" / "watching"
RULES = FOLDER / "sparkonce-rules.yml"
DASHBOARD = json.loads((FOLDER / "sparkonce-dashboard.json").read_text())
NEEDS_PROMETHEUS = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")), reason="Prometheus is not installed"
)
QUERIES = {"busy": "11111111-0000-4000-8000-000000000001", "dead": "11111111-0000-4000-8000-000000000002"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_figures, "_known", {})
        busy, dead = Figures(), Figures()
        for name, figures in (("busy", busy), ("dead", dead)):
            figures.start(QUERIES[name], name)
            run = Run()
            run.state = replace(
                run.state, phase=Phase.VALIDATING, writing=Writing(handles=(handle(0, time.time_ns() // 1_000_000),))
            )
            figures.begin_run(QUERIES[name], "r1", run)
            for phase in (Phase.WRITING, Phase.DECIDING, Phase.IDLE):
                figures.enter(phase, 3)
            figures.done(progress(3, healed=1))
        busy.enter(Phase.FINISHING, 4)
        dead.stopped(4, TransactionLostError("Rows are lost"))
        yield serve_metrics(0)


@pytest.mark.slow
@NEEDS_PROMETHEUS
def test_a_real_prometheus_takes_all_of_it(port, tmp_path):
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "sparkonce", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address, log = f"127.0.0.1:{free_port()}", tmp_path / "log"

    def ask(path: str, **given: str) -> Any:
        url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(given)}"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return json.loads(answer.read())["data"]

    def is_up() -> bool:
        assert running.poll() is None, log.read_text()
        try:
            return bool(ask("query", query="sparkonce_batches_total")["result"])
        except OSError:
            return False

    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with log.open("w") as out:
        running = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=out, stderr=out)
    try:
        eventually(is_up, "Prometheus has scraped our figures")
        # The dashboard's expressions as Grafana sends them, by panel title.
        answers = {
            f"{panel['title']} {target['refId']}": ask(
                "query",
                query=target["expr"].replace("$__rate_interval", "1m").replace("$query", "|".join(QUERIES.values())),
            )["result"]
            for panel in DASHBOARD["panels"]
            for target in panel.get("targets", [])
        }
        value = {title: [float(one["value"][1]) for one in found] for title, found in answers.items()}
        assert value["Queries that have stopped A"] == [1]
        assert value["In doubt A"] == [2]
        assert len(value["Phase A"]) == 2
        assert [one["metric"]["name"] for one in answers["In one phase for A"]] == ["busy", "dead"]
        assert len(value["Age of the oldest transaction B"]) == 2
        assert value["Age of the oldest transaction B"][0] == 900
        assert value["Oldest, of its timeout A"][0] > 0
        rules = ask("rules")["groups"][0]["rules"]
        assert all(rule["health"] == "ok" for rule in rules if rule["lastEvaluation"] > "0002")
        firing = eventually(
            lambda: [one for one in ask("alerts")["alerts"] if one["labels"]["alertname"] == "SparkonceRowsLost"],
            "the alert for lost rows",
        )
        assert [one["labels"]["name"] for one in firing] == ["dead"]
        assert "Query dead cannot" in firing[0]["annotations"]["summary"]
    finally:
        running.terminate()
        running.wait(LIMIT_S)


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    told = ",".join(f'{label}="{value}"' for label, value in {"query": "q", "name": "totals", **labels}.items())
    return {"series": f"sparkonce_{name}{{{told}}}", "values": values}


FIRES: dict[str, list[dict[str, str]]] = {
    "SparkonceStopped": [series("phase", "1x30", phase="stopped"), series("phase", "0x30", phase="idle")],
    "SparkonceGone": [series("batches_total", "0+1x10 _x20")],
    "SparkonceRowsLost": [series("stops_total", "_x10 1x20", error="TransactionLostError")],
    "SparkonceStuck": [
        series("phase_age_seconds", "0+60x30"),
        series("phase", "1x30", phase="finishing"),
        series("phase", "0x30", phase="idle"),
        series("phase", "1x30", phase="idle", instance="an old driver"),
    ],
    "SparkonceTransactionOld": [
        series("oldest_transaction_seconds", "460x30", sink="a"),
        series("transaction_timeout_seconds", "900x30", sink="a"),
    ],
    "SparkonceTransactionNearTimeout": [
        series("oldest_transaction_seconds", "730x30", sink="a"),
        series("transaction_timeout_seconds", "900x30", sink="a"),
    ],
    "SparkonceHealed": [series("healed_transactions_total", "_x10 2x20")],
    "SparkonceAbortsMany": [series("swept_transactions_total", "0+9x30"), series("transactions_total", "0+4x30")],
}
"""What Prometheus has scraped in half an hour. Counters often begin above 0, as after a restart."""


@NEEDS_PROMETHEUS
@pytest.mark.parametrize("alert", [*FIRES, ""])
def test_each_alert_fires_by_its_own_series_and_by_no_other(alert, tmp_path):
    """promtool evaluates the rules at a given time. If no alert is named, none may fire."""
    quiet = [
        series("phase", "1x30", phase="stopped", instance="an old driver"),
        series("phase", "1x30", phase="idle"),
        series("phase_age_seconds", "0+60x30"),
        series("batches_total", "0+1x30"),
        series("stops_total", "_x10 1x20", error="PrepareError"),
        series("oldest_transaction_seconds", "440x30", sink="a"),
        series("transaction_timeout_seconds", "900x30", sink="a"),
        series("oldest_transaction_seconds", "800x30", sink="b"),
        series("transaction_timeout_seconds", "3600x30", sink="b"),
        series("oldest_transaction_seconds", "80000x30", sink="without a timeout"),
        series("healed_transactions_total", "0x30"),
        series("swept_transactions_total", "0+4x30"),
        series("transactions_total", "0+9x30"),
    ]
    given = FIRES.get(alert, quiet)
    names = [one["alert"] for one in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
    assert set(names) == set(FIRES)
    expected = {name: [] for name in names}
    also = {"SparkonceTransactionNearTimeout": ["SparkonceTransactionOld"]}.get(alert, [])
    checks = [
        {
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
            "eval_time": "28m",
            "exp_samples": [{"labels": "{}", "value": int(name in (alert, *also))}],
        }
        for name in expected
    ]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": checks}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "test.yml")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_and_rules_name_figures_that_there_are(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        there = set(re.findall(r"^(sparkonce_\w+)", answer.read().decode(), re.MULTILINE))
    texts = {"the dashboard": json.dumps(DASHBOARD["panels"]), "the rules": RULES.read_text()}
    for where, text in texts.items():
        named = set(re.findall(r"\bsparkonce_\w+", text))
        assert named, where
        assert named <= there, where
    page = (ROOT / "docs" / "watching.md").read_text()
    counted = {one.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for one in there}
    assert set(re.findall(r"^\| `(sparkonce_\w+)", page, re.MULTILINE)) == {
        one for one in counted if not one.endswith("_created")
    }
    assert set(re.findall(r"^### (Sparkonce\w+)$", page, re.MULTILINE)) == set(FIRES)


def test_grafanas_schema_knows_all_of_the_dashboard():
    """Reads and writes the dashboard again, which drops everything that the schema does not contain."""
    dashboards = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    def missing(given: Any, found: Any, path: str = "") -> Iterator[str]:
        if isinstance(given, dict) and isinstance(found, dict):
            for name in given:
                yield from missing(given[name], found.get(name), f"{path}/{name}")
        elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
            for number, pair in enumerate(zip(given, found, strict=True)):
                yield from missing(*pair, f"{path}/{number}")
        elif given != found:
            yield f"{path}: {given!r} became {found!r}"

    register_default_plugins()
    again = json.loads(JSONEncoder(sort_keys=True).encode(dashboards.Dashboard.from_json(DASHBOARD)))
    assert list(missing(DASHBOARD, again)) == []
