from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from sparkonce.sinks.files.s3.preflight import DAY_S, inspect_bucket, read_rules


def rule(**more: Any) -> dict[str, Any]:
    return {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, **more}


def aborts(days: int, **more: Any) -> dict[str, Any]:
    return rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": days}, **more)


@pytest.mark.parametrize(
    ("rules", "days"),
    [
        ([], None),
        ([rule(Expiration={"Days": 3})], None),
        ([aborts(3)], 3),
        ([aborts(3), aborts(2), aborts(9)], 2),
        ([aborts(3, Status="Disabled")], None),
        ([aborts(3, Filter={"Prefix": "out/"})], 3),
        ([aborts(3, Filter={"Prefix": "out/x/deeper"})], 3),
        ([aborts(3, Filter={"Prefix": "other/"})], None),
        ([aborts(3, Filter={"And": {"Prefix": "other/", "Tags": []}})], None),
        ([{"Status": "Enabled", "Prefix": "ou", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 4}}], 4),
        ([{"Status": "Enabled", "Prefix": "x", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 4}}], None),
    ],
)
def test_the_first_rule_to_abort_is_the_timeout(rules: list[dict[str, Any]], days: int | None) -> None:
    found = read_rules(rules, "out/x/")
    assert found.timeout_s == (None if days is None else days * DAY_S)
    assert any("no lifecycle rule aborts" in note for note in found.notes) == (days is None)


@pytest.mark.parametrize(("expiration", "told"), [({"Days": 30}, "30 days"), ({"Date": "2030-01-01"}, "2030-01-01")])
def test_a_rule_that_deletes_objects_is_told(expiration: dict[str, Any], told: str) -> None:
    (note,) = read_rules([aborts(7), rule(ID="cleanup", Expiration=expiration)], "out/").notes
    assert "'cleanup'" in note
    assert told in note


def test_the_rules_are_asked_for() -> None:
    class Lifecycle:
        """A store with lifecycle rules, which the other tests' server lacks."""

        def __init__(self, rules: list[dict[str, Any]] | str, versioning: dict[str, str] | None = None) -> None:
            self._rules = rules
            self._versioning = versioning or {}

        def get_bucket_lifecycle_configuration(self, **_: str) -> dict[str, Any]:
            if isinstance(self._rules, str):
                told = {"Error": {"Code": self._rules}, "ResponseMetadata": {"HTTPStatusCode": 403}}
                raise ClientError(told, "GetBucketLifecycleConfiguration")
            return {"Rules": self._rules}

        def get_bucket_versioning(self, **_: str) -> dict[str, str]:
            return self._versioning

    found = inspect_bucket(Lifecycle([aborts(5)]), "b", "out/")
    assert found.timeout_s == 5 * DAY_S
    assert found.notes == ()

    found = inspect_bucket(Lifecycle("AccessDenied"), "b", "out/")
    assert found.timeout_s is None
    assert "s3:GetLifecycleConfiguration" in found.notes[0]

    found = inspect_bucket(Lifecycle("NoSuchLifecycleConfiguration"), "b", "out/")
    assert "AbortIncompleteMultipartUpload" in found.notes[0]

    (note,) = inspect_bucket(Lifecycle([aborts(5)], {"Status": "Enabled"}), "b", "").notes
    assert "old versions" in note

    assert read_rules([aborts(7), rule(Expiration={"ExpiredObjectDeleteMarker": True})], "").notes == ()
