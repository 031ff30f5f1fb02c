"""The files sink over S3, where it is more than its store and its conformance suite."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from integration.s3_scene import between, bucket, s3
from s3_between import GO_ON, Between, Reply
from s3_bucket import Bucket
from sparkonce import FilesSink, Guarantee
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, WriterContext
from sparkonce_lab.rig.servers.s3 import SECRET_KEY, S3Server

__all__ = ["between", "bucket", "s3"]

QUERY = "0123456789ab"
RULES = b"""<LifecycleConfiguration>
<Rule><ID>uploads</ID><Status>Enabled</Status><Filter><Prefix>out/</Prefix></Filter>
<AbortIncompleteMultipartUpload><DaysAfterInitiation>3</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>
<Rule><ID>tidy</ID><Status>Enabled</Status><Filter><Prefix>out/</Prefix></Filter>
<Expiration><Days>30</Days></Expiration></Rule>
</LifecycleConfiguration>"""


def new_sink(bucket: Bucket, *, guarantee: Guarantee = Guarantee.EXACTLY_ONCE, **options: Any) -> FilesSink:
    options = {**bucket.server.settings(), **options}
    return FilesSink(f"s3://{bucket.name}/out", store_options=options, guarantee=guarantee)


def test_a_lifecycle_rule_is_the_timeout_and_another_a_condition(bucket: Bucket, between: Between) -> None:
    between.act = lambda request: Reply(200, RULES) if request.path.endswith("?lifecycle") else GO_ON
    sink = new_sink(bucket, endpoint_url=between.url)
    assert not any("'tidy'" in one for one in sink.conditions())
    facts = sink.preflight(QUERY, None)
    assert sink.transaction_timeout_s(facts) == 3 * 24 * 3600
    assert any("'tidy'" in one and "30 days" in one for one in sink.conditions())
    direct = new_sink(bucket, endpoint_url=between.url, guarantee=Guarantee.AT_LEAST_ONCE)
    assert direct.transaction_timeout_s(facts) is None


def test_a_changed_lifecycle_rule_is_no_other_place(bucket: Bucket, between: Between) -> None:
    sink = new_sink(bucket, endpoint_url=between.url)
    before = sink.preflight(QUERY, None)
    assert sink.transaction_timeout_s(before) is None
    between.act = lambda request: Reply(200, RULES) if request.path.endswith("?lifecycle") else GO_ON
    assert sink.transaction_timeout_s(sink.preflight(QUERY, before)) == 3 * 24 * 3600


def test_another_bucket_is_refused(bucket: Bucket, s3: S3Server) -> None:
    """Its answer for the last batch's uploads would be that they are lost."""
    facts = new_sink(bucket).preflight(QUERY, None)
    with pytest.raises(PreflightError, match="bucket"):
        new_sink(Bucket(s3)).preflight(QUERY, facts)


def test_an_option_that_is_not_one_is_named(bucket: Bucket) -> None:
    with pytest.raises(ConfigurationError, match="'endpoint'"):
        new_sink(bucket, endpoint="http://somewhere").preflight(QUERY, None)


def test_no_secret_is_in_a_handle_or_the_facts(bucket: Bucket) -> None:
    def _context(facts: Any) -> WriterContext:
        owner = Owner(query=QUERY, token=Token(1, "00112233"), facts=facts)
        return WriterContext(owner=owner, batch=0, slot=0, copy="1.1.0")

    sink = new_sink(bucket)
    facts = sink.preflight(QUERY, None)
    writer = sink.writer(_context(facts))
    writer.begin()
    writer.write(pa.record_batch({"number": [1, 2]}))
    fields = writer.prepare()
    writer.close()
    assert SECRET_KEY not in json.dumps([dict(facts), dict(fields)]) + repr(sink)
    committer = sink.committer()
    (finished,) = committer.commit([Handle(sink="files", slot=0, rows=2, transaction=transaction_fields(fields))])
    committer.close()
    assert finished.outcome is Outcome.COMMITTED
