"""Users' values become text or Python objects in only a few places, each of which handles what Python cannot hold."""

from __future__ import annotations

import ast

from tidy.sources import MODULES, name, nodes, tree

ALLOWED = {
    "sinks/_shared/arrow.py": "the one place for texts",
    "executor.py": "reasons",
    "sinks/files/names.py": "texts of arrow_text",
    "spark/formats/task.py": "bytes",
    "sinks/kafka/rows.py": "bytes, 32-bit numbers, milliseconds, and header keys that are known to be UTF-8",
    "sinks/kafka/writer.py": "names of topics",
    "sinks/memory/sink.py": "for tests",
    "sinks/memory/server.py": "for tests",
    "sinks/sql/mysql/encoding.py": "texts of arrow_text, and hexadecimal digits",
    "sparkonce_rabbitmq/sinks/queue_publisher.py": "bytes, numbers, and strings that are known to be UTF-8",
    "sparkonce_rabbitmq/sinks/routing.py": "bytes",
    "sinks/redis/names.py": "bytes",
    "sparkonce_rabbitmq/stream/chunks.py": "what a broker has sent as UTF-8",
}
"""The modules that may do so, and what they convert."""

_RIMS = ("sparkonce_lab/", "testing/", "cli/", "ui/", "watch/")
"""The modules that never see users' values."""


def test_values_become_text_or_objects_only_where_that_is_known_to_be_right():
    """Arrow writes far dates as "<value out of range>", and Python has neither them nor strings that are not UTF-8."""

    def converts(call: ast.AST) -> bool:
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            return False
        # not 'string', since Spark's own strings are complete
        texts = {"pa.string()", "pa.large_string()", "STRING", "pa.utf8()"}
        is_text = call.func.attr == "cast" and any(ast.unparse(one) in texts for one in call.args)
        return is_text or call.func.attr in {"to_pylist", "to_pandas", "to_pydict"}

    modules = [path for path in MODULES if not name(path).startswith(_RIMS) and name(path) not in ALLOWED]
    found = [f"{name(path)}:{one.lineno}" for path in modules for one in nodes(tree(path)) if converts(one)]
    assert found == [], "use sinks/_shared/arrow.py: plain_text, json_text, python_value"


def test_parquet_is_written_with_its_calendar():
    found = {
        name(path)
        for path in MODULES
        for one in nodes(tree(path))
        if isinstance(one, ast.Attribute) and one.attr in {"ParquetWriter", "write_table"}
    }
    found = {one for one in found if not one.startswith(_RIMS)}
    assert found <= {"sinks/_shared/parquet.py", "sinks/files/formats.py", "sinks/write_ahead/rows.py"}
