"""The conditions of an upsert are parsed as SQL, so text in strings, comments and names is ignored."""

from __future__ import annotations

from sparkonce.sinks.sql.settings import named, with_source

CONDITION = """source.at >= target."At" AND 'source.x' <> source . "weird ""q" -- source.y
 AND /* source.z */ x.source.k = SOURCE.Big AND my_source.a = E'it\\'s source.b' AND `source.c` > source.`d`"""


def test_columns_that_a_condition_reads() -> None:
    assert named(CONDITION) == [
        ("source", "at"),
        ("target", "At"),
        ("source", 'weird "q'),
        ("source", "big"),
        ("source", "d"),
    ]


def test_the_batchs_row_gets_another_name_and_nothing_else_does() -> None:
    assert with_source(CONDITION, "EXCLUDED") == (
        """EXCLUDED.at >= target."At" AND 'source.x' <> EXCLUDED . "weird ""q" -- source.y
 AND /* source.z */ x.source.k = EXCLUDED.Big AND my_source.a = E'it\\'s source.b' AND `source.c` > EXCLUDED.`d`"""
    )
