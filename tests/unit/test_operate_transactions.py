from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.operate.systems import NamedSystem, known_sinks, read_file, sinks_of, sinks_to_finish
from sparkonce.operate.transactions import LogVerdict, judge
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Decision, Floor, LogView, Run
from sparkonce.sinks._shared.orphans import Orphan
from sparkonce.sinks.kafka.orphans import KafkaOrphan

QUERY = "60a1de00-0000-4000-8000-000000000001"
SHORT = "60a1de000000"
OLDER, NEWEST = Token(2, "0badcafe"), Token(7, "1460936b")
FORGOTTEN, STRANGER = Token(0, "deadbeef"), Token(2, "ffffffff")
COPY, OTHER = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


def orphan(token: Token = NEWEST, *, batch: int = 5, copy: str = COPY, query: str = SHORT) -> Orphan:
    name = f"orders.{query}.{token.position}-{token.nonce}.{batch}.0.{copy}"
    run = f"{token.position}-{token.nonce}"
    return Orphan(kind="prepared", name=name, query=query, run=run, batch=batch, slot=0, copy=copy, age_s=1.0, holds=())


def view(*, void: tuple[tuple[str, int], ...] = ()) -> LogView:
    """Returns a log with batch 5 decided for one task attempt of slot 0, run 2 known, and run 0 below the floor."""
    fields = transaction_fields({"name": orphan().name})
    decision = Decision(
        position=8,
        token=NEWEST,
        query=QUERY,
        batch=5,
        offsets=("1",),
        handles=(Handle(sink="orders", slot=0, rows=3, transaction=fields),),
        void=void,
    )
    runs = tuple(Run(token=token, query=QUERY) for token in (OLDER, NEWEST))
    return LogView(floor=Floor(position=1), end=9, runs=runs, decisions=(decision,))


@pytest.mark.parametrize(
    ("found", "log", "verdict"),
    [
        (orphan(), view(), LogVerdict.COMMIT),
        (orphan(), view(void=(("orders", 0),)), LogVerdict.ABORT),
        (orphan(copy=OTHER), view(), LogVerdict.ABORT),
        (orphan(batch=6, copy=OTHER), view(), LogVerdict.UNDER_WAY),
        (orphan(batch=-1, copy=OTHER), view(), LogVerdict.UNDER_WAY),
        (orphan(OLDER, copy=OTHER), view(), LogVerdict.ABORT),
        (orphan(FORGOTTEN, copy=OTHER), view(), LogVerdict.NOT_KNOWN),
        (orphan(STRANGER, copy=OTHER), view(), LogVerdict.NOT_KNOWN),
        (orphan(Token(9, "00000000"), copy=OTHER), view(), LogVerdict.NOT_KNOWN),
        (orphan(query="0123456789ab"), view(), LogVerdict.NOT_KNOWN),
        (orphan(), LogView(), LogVerdict.NOT_KNOWN),
        (orphan(), None, LogVerdict.NOT_KNOWN),
    ],
)
def test_the_log_says_what_is_to_come(found, log, verdict):
    assert judge("orders", found, log).verdict is verdict


@pytest.mark.parametrize(
    ("copy", "log", "batch", "slot"), [(COPY, view(), 5, 0), (OTHER, view(), -1, -1), (COPY, None, -1, -1)]
)
def test_the_log_says_which_batch_a_decided_transaction_is_of(copy, log, batch, slot):
    """Kafka's ids do not contain it."""
    told = judge("orders", replace(orphan(batch=-1, copy=copy), slot=-1), log).plain()
    assert (told["batch"], told["slot"]) == (batch, slot)


@pytest.mark.parametrize(("producer_id", "epoch", "is_it"), [(11, 3, True), (11, 4, False), (12, 3, False)])
def test_a_transaction_of_kafka_is_known_by_producer_and_epoch(producer_id, epoch, is_it):
    name = f"orders.{SHORT}.7-1460936b.cccccccccccc-1"
    found = KafkaOrphan(
        kind="open",
        name=name,
        query=SHORT,
        run="7-1460936b",
        batch=-1,
        slot=-1,
        copy="cccccccccccc-1",
        age_s=1,
        holds=("totals-0",),
        timeout_s=60,
        producer_id=producer_id,
        epoch=epoch,
    )
    fields = transaction_fields({"transactional_id": name, "producer_id": 11, "epoch": 3})
    assert found.is_of(Handle(sink="kafka", slot=0, transaction=fields)) is is_it


def systems_of(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> list[NamedSystem]:
    (tmp_path / "systems.yaml").write_text(text)
    return list(read_file(str(tmp_path / "systems.yaml"), environment or {}).systems.values())


def test_a_file_names_systems_and_takes_secrets_from_the_environment(tmp_path):
    text = """
systems:
  kafka:
    bootstrap.servers: broker:9092
    sasl.password: "${KAFKA_PASSWORD}"
  ledger: {system: redis, url: "redis://:${REDIS}@cache:6379/0"}
  orders-db: {system: postgres, conninfo: host=db dbname=orders}
  mysql: {host: db, port: "${PORT}", user: etl}
  out: {system: files, path: /data/out}
"""
    found = systems_of(tmp_path, text, {"KAFKA_PASSWORD": "a b", "REDIS": "pw", "PORT": "3307"})
    assert [(one.name, one.kind.value, one.settings) for one in found] == [
        ("kafka", "kafka", {"bootstrap.servers": "broker:9092", "sasl.password": "a b"}),
        ("ledger", "redis", "redis://:pw@cache:6379/0"),
        ("orders-db", "postgres", "host=db dbname=orders"),
        ("mysql", "mysql", {"host": "db", "port": 3307, "user": "etl"}),
        ("out", "files", {"path": "/data/out"}),
    ]
    assert "pw" not in repr(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("systems: [", "is not YAML: see line"),
        ("systems: {kafka: {since: 2024-99-99}}", "is not YAML"),
        ("5", "has no systems"),
        ("kafka: {}", "has no systems"),
        ("systems: 5", "`systems` is not a mapping"),
        ("systems: {redis: redis://cache}\nsinks: 5", "`sinks` is not a mapping"),
        ("systems: {redis: redis://cache}\nsinks: {redis: [very-secret]}", "of sink 'redis' are not a mapping"),
        ("systems: {redis: redis://cache}\nqueries: {totals: {}}", "'totals' is not the id of a query"),
        (f"systems: {{redis: redis://cache}}\nqueries: {{{QUERY}: {{redis: 5}}}}", "of sink 'redis' are not a mapping"),
        ("systems: {oracle: host=db}", "'oracle' is of the system 'oracle', which is not known"),
        ("systems: {kafka: }", "'kafka' has no settings"),
        ("systems: {kafka: 5}", "'kafka' has no settings"),
        ("systems: {redis: {url: {a: very-secret}}}", "'redis' has no settings"),
        ("systems: {kafka: {a: [very-secret]}}", "'a' of 'kafka' is neither a string nor a number"),
        ("systems: {mysql: {host: db, port: many}}", "port='many' is not a number"),
        ("systems: {kafka: {a: '${NOWHERE}'}}", "refers to ${NOWHERE}, which the environment does not have"),
        ("systems: {redis: {host: cache, password: very-secret}}", "has the settings ['host', 'password']"),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_its_values(tmp_path, text, said):
    with pytest.raises(ConfigurationError) as refused:
        systems_of(tmp_path, text)
    assert said in str(refused.value)
    assert refused.value.next_step
    assert "very-secret" not in str(refused.value)


def test_the_environment_names_the_file(tmp_path):
    assert read_file(environment={}).systems == {}
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_file(str(tmp_path / "missing.yaml"), {})
    (tmp_path / "kept.yaml").write_text("systems: {kafka: bootstrap.servers=b:9092}")
    assert list(read_file(environment={"SPARKONCE_CONFIG": str(tmp_path / "kept.yaml")}).systems) == ["kafka"]


RECORDED = LogView(
    end=9,
    runs=(
        Run(
            token=NEWEST,
            query=QUERY,
            sinks=(
                ("files", (("prefix", "files"),)),
                ("kafka", (("prefix", "shop.eu"), ("topic", "totals"), ("transaction_timeout_ms", "900000"))),
                ("kafka.direct", (("topic", "totals"),)),
                ("mysql.two_phase", (("database", "shop"), ("prefix", "sparkonce.mysql.two_phase"))),
                ("postgres.staged", (("commits", "markers"), ("database", "shop"), ("prefix", "shop.postgres.staged"))),
                ("redis", (("mode", "single"), ("prefix", "redis"))),
            ),
        ),
    ),
)


def test_sinks_are_made_with_what_the_log_knows_of_them(tmp_path):
    text = """
systems:
  kafka: {bootstrap.servers: broker:9092}
  db: {system: postgres, conninfo: host=db}
  mysql: {host: db, user: etl}
  redis: redis://cache
  files: {path: /data/out}
sinks:
  postgres.staged: {system: db, table: orders, prefix: shop}
  mysql.two_phase: {system: mysql, table: orders, commit: two_phase}
"""
    (tmp_path / "systems.yaml").write_text(text)
    made = sinks_of(read_file(str(tmp_path / "systems.yaml"), {}), RECORDED)
    assert {name: type(sink).__name__ for name, sink in made.items()} == {
        "kafka": "KafkaSink",
        "postgres.staged": "PostgresSink",
        "mysql.two_phase": "MySQLSink",
        "redis": "RedisSink",
        "files": "FilesSink",
    }
    of_another = text.replace("  mysql.two_phase:", "  another.query: {system: db, table: other}\n  mysql.two_phase:")
    (tmp_path / "systems.yaml").write_text(of_another)
    assert sinks_of(read_file(str(tmp_path / "systems.yaml"), {}), RECORDED).keys() == made.keys()
    kafka, postgres = made["kafka"], made["postgres.staged"]
    assert (kafka.prefix, kafka.topic) == ("shop.eu", "totals")
    assert (postgres.commits_schema, postgres.prefix) == ("markers", "shop.postgres.staged")


def test_two_queries_with_a_sink_of_the_same_name_share_a_file(tmp_path):
    (tmp_path / "systems.yaml").write_text(f"""
systems:
  db: {{system: postgres, conninfo: host=db}}
sinks:
  orders: {{system: db, table: orders}}
queries:
  {QUERY}:
    orders: {{system: db, table: returns}}
""")

    def table_of(query: str) -> str:
        log = LogView(end=1, runs=(Run(token=NEWEST, query=query, sinks=(("orders", (("prefix", "p.orders"),)),)),))
        return sinks_of(read_file(str(tmp_path / "systems.yaml"), {}), log)["orders"].target.table

    assert table_of(QUERY) == "returns"
    assert table_of("b0000000-0000-4000-8000-000000000002") == "orders"


@pytest.mark.parametrize(
    ("sinks", "said"),
    [
        ("{typo: {system: db, table: t}}", "has the sinks ['typo']"),
        ("{postgres.staged: {system: nowhere, table: t}}", "is on the system 'nowhere'"),
        ("{postgres.staged: {system: db}}", "cannot be created"),
        ("{postgres.staged: {system: db, table: t, tabel: t}}", "cannot be created"),
    ],
)
def test_a_sink_that_is_wrong_is_named(tmp_path, sinks, said):
    (tmp_path / "systems.yaml").write_text(f"systems: {{db: {{system: postgres, conninfo: host=db}}}}\nsinks: {sinks}")
    with pytest.raises(ConfigurationError) as refused:
        sinks_of(read_file(str(tmp_path / "systems.yaml"), {}), RECORDED)
    assert said in str(refused.value)


def test_a_sink_that_the_newest_run_does_not_have_any_more_can_be_named():
    assert "kafka.direct" not in sinks_to_finish(RECORDED) >= {"kafka", "files", "redis", "postgres.staged"}
    older = Run(token=OLDER, query=QUERY, sinks=(("gone", (("prefix", "a"),)), ("kept", (("prefix", "b"),))))
    newest = Run(token=NEWEST, query=QUERY, sinks=(("kept", (("prefix", "c"),)),))
    log = LogView(end=9, runs=(older, newest))
    assert known_sinks(log) == {"gone": {"prefix": "a"}, "kept": {"prefix": "c"}}
    assert sinks_to_finish(log) == {"kept"}
