"""A sink of your own. A transaction is a staging table; a commit moves its rows."""

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
        columns = "name PRIMARY KEY, query, batch"
        with self.transaction() as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS committed ({columns})")
        return recorded or {"prefix": self.name}

    def writer(self, context):
        return SqliteWriter(self, context)

    def committer(self):
        return SqliteCommitter(self)

    def finish(self, name, *, commit):
        with self.transaction() as db:
            done, staged = (
                db.execute(f"SELECT 1 FROM {table} WHERE name = ?", [name]).fetchone()
                for table in ("committed", "sqlite_master")
            )
            if done:
                return Outcome.ALREADY_COMMITTED
            if not staged:
                return Outcome.LOST if commit else Outcome.ABORTED
            if commit:
                parsed = TransactionName.parse(name)
                note = [name, parsed.query, parsed.batch]
                db.execute(f'INSERT INTO {self.table} SELECT * FROM "{name}"')
                db.execute("INSERT INTO committed VALUES (?, ?, ?)", note)
            db.execute(f'DROP TABLE "{name}"')
        return Outcome.COMMITTED if commit else Outcome.ABORTED


class SqliteWriter(SinkWriter):
    def __init__(self, sink, at):
        of = at.owner
        run = {"prefix": of.facts["prefix"], "query": of.query, "token": of.token}
        attempt = {"batch": at.batch, "slot": at.slot, "copy": secrets.token_hex(6)}
        self.sink, self.name = sink, str(TransactionName(**run, **attempt))

    def begin(self):
        like = f"SELECT * FROM {self.sink.table} LIMIT 0"
        with self.sink.transaction() as db:
            db.execute(f'CREATE TABLE "{self.name}" AS {like}')

    def write(self, rows):
        names = ", ".join(rows.schema.names)
        values = ", ".join(f":{name}" for name in rows.schema.names)
        insert = f'INSERT INTO "{self.name}" ({names}) VALUES ({values})'
        with self.sink.transaction() as db:  # fails if an abort has dropped the table
            db.executemany(insert, rows.to_pylist())

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
        return [self.finish(dict(one.transaction), commit=True) for one in handles]

    def abort(self, handles):
        return [self.finish(dict(one.transaction), commit=False) for one in handles]

    def finish(self, fields, *, commit):
        try:
            return Finished(outcome=self.sink.finish(fields["name"], commit=commit))
        except sqlite3.Error as error:
            # An OperationalError: the database is locked, or the disk is full.
            again = isinstance(error, sqlite3.OperationalError)
            outcome = Outcome.RETRY if again else Outcome.UNKNOWN
            return Finished(outcome=outcome, reason=str(error))

    def list_lingering(self, owners):
        tables = self.ask("SELECT name FROM sqlite_master")
        runs = claimed_by(owners)  # the tokens of each (prefix, query)
        return [
            Handle(sink=self.sink.name, slot=one.slot, transaction=(("name", table),))
            for (table,) in tables
            if (one := TransactionName.parse(table))
            if one.token in runs.get((one.prefix, one.query), ())
        ]

    def list_traces(self, query, facts):
        names = self.ask("SELECT name FROM committed WHERE query = ?", query)
        return [
            Trace(token=one.token, committed=(("name", name),), batch=one.batch)
            for (name,) in names
            if (one := TransactionName.parse(name)).prefix == facts["prefix"]
        ]

    def conclude(self, batch, handles):
        old = "DELETE FROM committed WHERE query = ? AND batch < ?"
        names = [one["name"] for one in handles if one.transaction]
        for query in {TransactionName.parse(name).query for name in names}:
            self.ask(old, query, batch - SINKS_KEEP_BATCHES)

    def ask(self, sql, *values):
        try:
            with self.sink.transaction() as db:
                return db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            reason = f"{self.sink.path} cannot be read: {error}"
            raise UnknownOutcomeError(reason) from error
