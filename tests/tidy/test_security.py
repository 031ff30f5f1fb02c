"""What no line of the product does, as far as the text of a program shows it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidy.sources import MODULES, ROOT, SOURCE, Found, lines, name, nobody, nodes, offenders, tree

RUNS_WHAT_IT_READS = {
    "pickle", "_pickle", "cPickle", "marshal", "shelve", "cloudpickle", "dill", "joblib", "yaml", "jsonpickle",
    "pyspark.cloudpickle", "pyspark.serializers", "numpy.load", "pandas.read_pickle", "codeop", "runpy",
}  # fmt: skip
"""Modules, and functions of modules, with which reading may run what is read."""

MAY_RUN = {
    "sinks/write_ahead/sink.py": "packs the user's own function for Spark's workers; no file holds it",
    "spark/slot_tasks.py": "packs the writers for Spark's workers; no file holds them",
    "spark/worker.py": "unpacks the writers behind a check of the worker; no file holds them",
    "spark/plans.py": "looks into a function that this process has pickled for the plan; no file holds it",
    "operate/systems.py": "reads an operator's file with YAML's safe_load, which makes plain values alone",
    "cli/output.py": "writes YAML, and reads none",
    "spark/job/script.py": "runs the program that the user names, as `python` would",
    "testing/scene.py": "tries whether a sink can be pickled as Spark does it, on one line",
    "testing/elsewhere.py": "gives a sink to another process through a pipe, as Spark does",
}

EVALUATES = {"eval", "exec", "compile", "__import__", "execfile"}
IMPORTS_BY_NAME = {
    "lazy.py": "the names that a package itself lists",
    "spark/shipped.py": "the clients that the sinks list, on a worker",
    "operate/systems.py": "the sinks of a list of its own",
    "operate/sinks.py": "the sinks of the same list",
}
SHELLS = {
    "os.system", "os.popen", "os.spawnl", "os.spawnv", "os.execl", "os.execv", "os.execvp", "pty.spawn",
    "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput",
}  # fmt: skip
PREDICTABLE = {"tempfile.mktemp", "os.tempnam", "os.tmpnam"}
UNVERIFIED = {"ssl._create_unverified_context", "ssl.wrap_socket"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def imported(source: ast.Module) -> Iterator[tuple[int, str]]:
    """Every module, and every name out of a module, also those imported inside functions."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def calls(source: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    return ((dotted(node.func), node) for node in nodes(source) if isinstance(node, ast.Call))


def runs_what_it_reads(source: ast.Module) -> Found:
    def known(word: str) -> bool:
        return any(word == one or word.startswith(f"{one}.") for one in RUNS_WHAT_IT_READS)

    short = {"np.load": "numpy.load", "pd.read_pickle": "pandas.read_pickle"}
    called = ((call.lineno, short.get(word, word)) for word, call in calls(source))
    return [(line, word) for line, word in (*imported(source), *called) if known(word)]


def evaluates(source: ast.Module) -> Found:
    return [(call.lineno, word) for word, call in calls(source) if word in EVALUATES]


def imports_by_name(source: ast.Module) -> Found:
    return [(call.lineno, word) for word, call in calls(source) if word.rpartition(".")[2] == "import_module"]


def shells(source: ast.Module) -> Found:
    by_name = [(call.lineno, word) for word, call in calls(source) if word in SHELLS]
    by_switch = [
        (call.lineno, f"{word}(shell=…)")
        for word, call in calls(source)
        for given in call.keywords
        if given.arg == "shell" and not (isinstance(given.value, ast.Constant) and given.value.value is False)
    ]
    return by_name + by_switch


def world_writable(source: ast.Module) -> Found:
    """Modes that let others write: 0o666 and 0o777 are of the system calls that the user's umask narrows."""
    return [
        (call.lineno, f"{word}({given.value:#o})")
        for word, call in calls(source)
        if word.rpartition(".")[2] in {"chmod", "fchmod", "umask"}
        for given in (*call.args, *(one.value for one in call.keywords))
        if isinstance(given, ast.Constant)
        and isinstance(given.value, int)
        and (given.value & 0o022 or word.endswith("umask"))
    ]


def guessable(source: ast.Module) -> Found:
    return [(call.lineno, word) for word, call in calls(source) if word in PREDICTABLE | UNVERIFIED]


def everywhere(check: Callable[[ast.Module], Found], paths: list[Path]) -> Iterator[str]:
    return offenders(paths, lambda path: check(tree(path)))


def all_but(check: Callable[[ast.Module], Found], listed: dict[str, str]) -> Iterator[str]:
    """Finds what files do that are not on a list, and the files on it that do not do it any more."""
    for path in MODULES:
        found = check(tree(path))
        if name(path) not in listed:
            yield from lines(path, found)
        elif not found:
            yield from lines(path, [(1, "it does not any more: take it off the list")])


def test_nothing_that_is_read_is_run() -> None:
    nobody(all_but(runs_what_it_reads, MAY_RUN), "read it with something that runs nothing, or say why in MAY_RUN")


def test_no_file_is_unpickled() -> None:
    """What pickles gets bytes from memory, or from the pipe to its own parent: none of it reads a file."""
    reads = {"open", "os.open", "read_bytes", "pickle.load", "pickle.Unpickler", "os.read"}

    def reading(source: ast.Module) -> Found:
        return [(one.lineno, word) for word, one in calls(source) if word in reads or word.endswith(".read_bytes")]

    nobody(everywhere(reading, [SOURCE / path for path in MAY_RUN]), "what unpickles does not read files")


def test_no_text_becomes_code() -> None:
    found = [*everywhere(evaluates, MODULES), *all_but(imports_by_name, IMPORTS_BY_NAME)]
    nobody(found, "write it down, or say why in IMPORTS_BY_NAME")


def test_no_shell_reads_a_line_of_ours() -> None:
    nobody(everywhere(shells, [*MODULES, ROOT / "dev.py"]), "give subprocess a list of arguments")


def test_no_file_is_opened_to_everybody_and_no_temporary_name_can_be_guessed() -> None:
    found = [*everywhere(world_writable, MODULES), *everywhere(guessable, MODULES)]
    nobody(found, "let nobody else write it; take mkstemp or mkdtemp, and a context that verifies")


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("import pickle", runs_what_it_reads),
        ("from pickle import loads", runs_what_it_reads),
        ("def f():\n    from pyspark.cloudpickle import dumps", runs_what_it_reads),
        ("import yaml.loader", runs_what_it_reads),
        ("np.load('x')", runs_what_it_reads),
        ("eval('1')", evaluates),
        ("exec(text)", evaluates),
        ("subprocess.run('ls', shell=True)", shells),
        ("run('ls', shell=switch)", shells),
        ("os.system('ls')", shells),
        ("path.chmod(0o777)", world_writable),
        ("os.chmod(path, mode=0o662)", world_writable),
        ("os.umask(0)", world_writable),
    ],
)
def test_these_checks_can_fail(line: str, check: object) -> None:
    assert callable(check)
    assert check(ast.parse(line))


# --- SQL ------------------------------------------------------------------------------------------------------------

STATEMENT = re.compile(
    r"^\s*(SELECT|INSERT|DELETE|UPDATE|CREATE|DROP|ALTER|COPY|LOAD DATA|TRUNCATE|RENAME|LOCK|PREPARE|COMMIT|ROLLBACK|"
    r"XA|KILL|SHOW|SET|GRANT|REVOKE|COMMENT|MERGE|CALL|USE|FROM|WHERE) "
)
QUOTES = {"quote", "quoted", "plain_literal", "placeholders", "insert_into", "int", "sql_literal"}
"""Functions whose answer is safe in a statement whatever they are given."""

NULLS = "', '.join(['NULL'] * len(names))"
NAMED_AS_IS = {
    "lab/demo/scenario.py": {"number": "begins a sentence that is no statement"},
    "sinks/mysql/encoding.py": {"', '.join(made)": "of names that the caller has quoted"},
    "sinks/mysql/markers.py": {
        "of_batch": "one of two texts of that function",
        "places": "a place for each value",
    },
    "sinks/mysql/preflight.py": {
        "listed": "quoted two lines above",
        NULLS: "as many NULL as there are columns",
        "places": "a place for each value",
        "name": "one of the two tables of markers.py",
        "probe": "drawn there, of hexadecimal digits",
    },
    "sinks/mysql/prepared.py": {
        "xid": "Xid writes itself in hexadecimal digits",
        "', '.join(['IS_USED_LOCK(%s)'] * len(waiting))": "a place for each value",
    },
    "sinks/mysql/statements.py": {"column_list": "of encoding.column_list, whose names are quoted"},
    "sinks/mysql/ways.py": {
        "self._xid": "Xid writes itself in hexadecimal digits",
        "columns": "of statements.definition, which quotes",
    },
    "sinks/postgres/preflight.py": {
        "', '.join(missing)": "rights, in a sentence that tells the operator what to run",
        "target": "in such a sentence, and quoted",
        "name": "in such a sentence, and quoted",
    },
    "lab/systems/mysql.py": {
        "self.database": "drawn there, of hexadecimal digits",
        "columns": "of COLUMNS, which is written down",
    },
    "testing/systems/mariadb.py": {
        "self._quoted": "quoted there",
        "table": "of the callers, who write it down",
        "', '.join(columns)": "of the callers, who write them down",
        "found.literal": "hexadecimal digits, and a number that the server gave",
    },
    "testing/systems/postgres.py": {
        "self.schema": "of the callers, who draw it of letters and digits",
        "table": "of the callers, who write it down",
        "', '.join(columns)": "of the callers, who write them down",
    },
    "lab/systems/postgres.py": {"self.schema": "drawn there, of hexadecimal digits"},
    "spark/tables/table.py": {
        "self.sql_name": "the table as the user names it, or its quoted path",
        "', '.join(columns)": "quoted one line above",
    },
    "spark/tables/merging.py": {
        "target": "the table as the user names it, and a branch of our own",
        "source": "a view of our own",
        "self.on": "of quoted names, and the user's own condition",
    },
}
"""What stands in a text that begins like a statement and is not quoted in that text, and why it may."""


def safe(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        word = dotted(node.func)
        if word.rpartition(".")[2] == "join" and len(node.args) == 1:
            given = node.args[0]
            return safe(given.elt if isinstance(given, (ast.GeneratorExp, ast.ListComp)) else given)
        return word.rpartition(".")[2] in QUOTES
    return dotted(node).rpartition(".")[2].lstrip("_").isupper()


def made_statements(source: ast.Module) -> Found:
    """What is put into a text that begins like a statement, without being quoted."""
    found: Found = []
    for node in nodes(source):
        put_in: list[ast.expr] = []
        if isinstance(node, ast.JoinedStr) and begins_one(node.values[0]):
            put_in = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
        elif isinstance(node, ast.BinOp) and begins_one(node.left):
            put_in = [node.right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and begins_one(node.func.value):
            put_in = [*node.args, *(one.value for one in node.keywords)] if node.func.attr == "format" else []
        found += [(one.lineno, ast.unparse(one)) for one in put_in if not safe(one)]
    return found


def begins_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(STATEMENT.match(node.value))


def unquoted() -> Iterator[str]:
    for path in MODULES:
        found, listed = made_statements(tree(path)), NAMED_AS_IS.get(name(path), {})
        yield from lines(path, [(line, word) for line, word in found if word not in listed])
        gone = set(listed) - {word for _, word in found}
        yield from lines(
            path, [(1, f"{word}: it is not there any more: take it off the list") for word in sorted(gone)]
        )


def test_no_name_gets_into_a_statement_unquoted() -> None:
    nobody(unquoted(), "quote it, or say in NAMED_AS_IS why it needs none")


THE_SERVERS_OWN = {"known[column].declared", "condition"}
"""The words of a type and of a CHECK, as the catalog gives them."""


def put_together(source: ast.Module) -> Found:
    """What psycopg is given as a statement, and is neither written down there nor made by psycopg."""

    def written(node: ast.expr) -> bool:
        if isinstance(node, ast.IfExp):
            return written(node.body) and written(node.orelse)
        return isinstance(node, ast.Constant) or ast.unparse(node) in THE_SERVERS_OWN

    found: Found = []
    for word, call in calls(source):
        last = word.rpartition(".")[2]
        if last == "SQL" and not written(call.args[0]):
            found.append((call.lineno, ast.unparse(call)))
        if last == "execute" and len(call.args) > 1 and not isinstance(call.args[0], (ast.Constant, ast.Name)):
            found.append(
                (call.lineno, ast.unparse(call))
            )  # a percent sign in a name would be taken for a value's place
        if last in {"execute", "executemany", "copy"} and (
            isinstance(call.args[0], (ast.JoinedStr, ast.BinOp))
            or made_statements(ast.Module([ast.Expr(call.args[0])], []))
        ):
            found.append((call.lineno, ast.unparse(call)))
    return found


def test_statements_for_postgresql_are_put_together_by_psycopg_alone() -> None:
    files = sorted((SOURCE / "sinks" / "postgres").rglob("*.py"))
    assert files
    nobody(everywhere(put_together, files), "put it together with psycopg.sql")


@pytest.mark.parametrize(
    "line",
    [
        "connection.execute(f'DROP TABLE {name}')",
        "connection.execute('DROP TABLE ' + name)",
        "connection.execute('DROP TABLE {}'.format(name))",
        "sql.SQL(f'{name}')",
        "sql.SQL(name)",
        "connection.execute(sql.SQL('SELECT FROM {} WHERE a = %s').format(table), (1,))",
    ],
)
def test_the_check_of_what_psycopg_is_given_can_fail(line: str) -> None:
    assert put_together(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        'run(f"DROP TABLE {name}")',
        'run("DROP TABLE " + name)',
        'run("DROP TABLE %s" % name)',
        'run("DROP TABLE {}".format(name))',
        """run(f"DROP TABLE {', '.join(names)}")""",
        """run(f"INSERT INTO {quote(table)} ({', '.join(name for name in names)})")""",
    ],
)
def test_the_check_of_statements_can_fail(line: str) -> None:
    assert made_statements(ast.parse(line))
