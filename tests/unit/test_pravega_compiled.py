from unittest.mock import MagicMock

import pytest

from sparkonce_pravega import compiled


def test_a_jar_that_could_not_be_added_is_added_by_the_next_call(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", lambda jvm: {"A.class": b"code"})
    spark = MagicMock()
    spark.sparkContext._temp_dir = str(tmp_path)
    add = spark._jsparkSession.sessionState().resourceLoader().addJar
    add.side_effect = [ConnectionError("gone"), None]
    with pytest.raises(ConnectionError):
        compiled.add_source(spark)
    compiled.add_source(spark)
    compiled.add_source(spark)
    assert add.call_count == 2, "and then no more"
    assert [path.name for path in tmp_path.iterdir()] == ["sparkonce-pravega.jar"]
