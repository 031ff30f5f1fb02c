"""Whether a script can start another query after it waits. The line with the mark is the one that waits."""

from textwrap import dedent

import pytest

from sparkonce.spark.explain.dry_run import may_follow


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start()\nwait()  # here", False),
        ("wait()  # here\nspark.stop()\nprint('done')", False),
        ("wait()  # here\nstart()", True),
        ("wait()  # here\ndef later():\n    start()", False),
        ("try:\n    wait()  # here\nfinally:\n    start()", True),
        ("try:\n    wait()  # here\nexcept Error:\n    start()", True),
        ("for each in all:\n    start()\n    wait()  # here", True),
        ("for each in all:\n    each.awaitTermination()  # here", False),
        ("if yes:\n    wait()  # here\nelse:\n    start()", False),
        ("if yes:\n    wait()  # here\nstart()", True),
        ("match yes:\n    case 1:\n        wait()  # here\n        start()", True),
        ("def main():\n    wait()  # here\nstart()", False),
        ("class Job:\n    def main(self):\n        wait()  # here\n        start()\nstart()", True),
    ],
)
def test_what_may_follow(tmp_path, text, expected):
    file = tmp_path / "job.py"
    file.write_text(dedent(text))
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "here" in each)
    assert may_follow([(str(file), line)]) is expected


def test_what_cannot_be_read_may_do_anything_and_each_caller_counts(tmp_path):
    assert may_follow([(str(tmp_path / "none.py"), 1)])

    file = tmp_path / "job.py"
    file.write_text("def main():\n    wait()\nmain()\nstart()\n")
    assert not may_follow([(str(file), 2)])
    assert may_follow([(str(file), 3), (str(file), 2)])
