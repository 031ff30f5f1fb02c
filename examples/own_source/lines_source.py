"""A source of your own: the lines of a text file that others append to."""

from itertools import islice
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from sparkonce.source import PreflightError, Source, holds, must


class LinesDataSource(DataSource):
    @classmethod
    def name(cls):
        return "lines"

    def schema(self):
        return "number long, line string"

    def streamReader(self, schema):
        return LinesReader(self.options["path"])


class LinesReader(DataSourceStreamReader):
    def __init__(self, path):
        self.path = path

    def initialOffset(self):
        return {"file": self.path, "line": 0}

    def latestOffset(self):
        return {"file": self.path, "line": Path(self.path).read_bytes().count(b"\n")}

    def partitions(self, start, end):
        return [InputPartition((start["line"], end["line"]))]

    def read(self, partition):
        first, end = partition.value
        with Path(self.path).open() as lines:
            for number, line in enumerate(islice(lines, first, end), first):
                yield number, line.rstrip("\n")


class Lines(Source):
    """Describes the source to sparkonce."""

    def judge(self, source, downtime):
        yield holds("line numbers are stored first; a replay reads the same lines")
        yield must("the file is only appended to, in whole lines, and never rotated")

    def describe_offset(self, offset):
        ours = isinstance(offset, dict) and offset.keys() == {"file", "line"}
        return offset["file"] if ours else None

    def rows_between(self, before, after):
        ours = self.describe_offset(after) is not None
        return after["line"] - before["line"] if ours else None

    def check(self, spark, source, trigger):
        if not Path(source.where).is_file():
            message = f"There is no file {source.where}, which this query reads."
            raise PreflightError(message, next_step="Create it.", setting="path")
