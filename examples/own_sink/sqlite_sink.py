"""A sink of your own: a transaction is a staging table of SQLite, until a commit moves its rows and notes its name."""

import secrets
import sqlite3
from contextlib import closing, contextmanager

from sparkonce.sink import (
    SINKS_KEEP_BATCHES,
    Finished,
    Guarantee,
    Handle,
    Outcome,
    SinkCommitter,
    SinkWriter,
    Trace,
    TransactionName,
    TwoPhaseCommitSink,
    UnknownOutcomeError,
    claimed_by,
)


class SqliteSink(TwoPhaseCommitSink):
    def __init__(self, path, table, name="sqlite", guarantee=Guarantee.EXACTLY_ONCE):
        super().__init__(name, guarantee)
        self.path, self.table = path, table

    @contextmanager
    def transaction(self):
        with closing(sqlite3.connect(self.path, timeout=30)) as database, database:
            database.execute("BEGIN IMMEDIATE")
            yield database

    def preflight(self, query, recorded):
        with self.transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS committed (name PRIMARY KEY, query, batch)")
        return recorded or {"prefix": self.name}

    def writer(self, context):
        return SqliteWriter(self, context)

    def committer(self):
        return SqliteCommitter(self)

    def finish(self, name, *, commit):
        with self.transaction() as db:
            if db.execute("SELECT 1 FROM committed WHERE name = ?", [name]).fetchone():
                return Outcome.ALREADY_COMMITTED
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [name]).fetchone():
                return Outcome.LOST if commit else Outcome.ABORTED
            if commit:
                parsed = TransactionName.parse(name)
                db.execute(f'INSERT INTO {self.table} SELECT * FROM "{name}"')
                db.execute("INSERT INTO committed VALUES (?, ?, ?)", [name, parsed.query, parsed.batch])
            db.execute(f'DROP TABLE "{name}"')
        return Outcome.COMMITTED if commit else Outcome.ABORTED


class SqliteWriter(SinkWriter):
    def __init__(self, sink, at):
        whose = {"prefix": at.owner.facts["prefix"], "query": at.owner.query, "token": at.owner.token}
        name = TransactionName(**whose, batch=at.batch, slot=at.slot, copy=secrets.token_hex(6))
        self.sink, self.name = sink, str(name)

    def begin(self):
        with self.sink.transaction() as db:
            db.execute(f'CREATE TABLE "{self.name}" AS SELECT * FROM {self.sink.table} LIMIT 0')

    def write(self, rows):
        names, places = ", ".join(rows.schema.names), ", ".join(f":{name}" for name in rows.schema.names)
        with self.sink.transaction() as db:  # fails if an abort has dropped the table
            db.executemany(f'INSERT INTO "{self.name}" ({names}) VALUES ({places})', rows.to_pylist())

    def prepare(self):
        if self.sink.guarantee is Guarantee.EXACTLY_ONCE:
            return {"name": self.name}  # each write is on disk by now
        self.sink.finish(self.name, commit=True)
        return {}

    def abort(self):
        self.sink.finish(self.name, commit=False)


class SqliteCommitter(SinkCommitter):
    def __init__(self, sink):
        self.sink = sink

    def commit(self, handles):
        return [self.finish(dict(handle.transaction), commit=True) for handle in handles]

    def abort(self, handles):
        return [self.finish(dict(handle.transaction), commit=False) for handle in handles]

    def finish(self, fields, *, commit):
        try:
            return Finished(outcome=self.sink.finish(fields["name"], commit=commit))
        except sqlite3.Error as error:
            again = isinstance(error, sqlite3.OperationalError)  # locked, or the disk is full
            return Finished(outcome=Outcome.RETRY if again else Outcome.UNKNOWN, reason=str(error))

    def list_lingering(self, owners):
        names = [TransactionName.parse(name) for (name,) in self.ask("SELECT name FROM sqlite_master")]
        runs = claimed_by(owners)  # the tokens of each (prefix, query)
        ours = [name for name in names if name and name.token in runs.get((name.prefix, name.query), ())]
        return [Handle(sink=self.sink.name, slot=one.slot, transaction=(("name", str(one)),)) for one in ours]

    def list_traces(self, query, facts):
        rows = self.ask("SELECT name FROM committed WHERE query = ?", query)
        ours = [name for (text,) in rows if (name := TransactionName.parse(text)).prefix == facts["prefix"]]
        return [Trace(token=one.token, committed=(("name", str(one)),), batch=one.batch) for one in ours]

    def conclude(self, batch, handles):
        for query in {TransactionName.parse(handle["name"]).query for handle in handles if handle.transaction}:
            self.ask("DELETE FROM committed WHERE query = ? AND batch < ?", query, batch - SINKS_KEEP_BATCHES)

    def ask(self, sql, *values):
        try:
            with self.sink.transaction() as db:
                return db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise UnknownOutcomeError(f"{self.sink.path} cannot be read: {error}") from error
