"""Small faults that are made in the source of one module.

A fault has a stable name: ``file:function:operator:number``, the number counting the sites of that operator in that
function. No file is changed. The module's source is compiled with the one change; where the module is imported already,
its functions get the new code, and else an import hook does.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src" / "sparkonce"

_TURNED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_MISREAD = {
    "COMMITTED": "LOST",
    "ALREADY_COMMITTED": "LOST",
    "ABORTED": "RETRY",
    "RETRY": "LOST",
    "LOST": "UNKNOWN",
    "DAMAGED": "COMMITTED",
    "UNKNOWN": "LOST",
}
_TELLS = {"debug", "info", "warning", "error", "exception", "log", "warn"}


@dataclass(frozen=True)
class Site:
    """One possible fault: the lines that it changes, and how."""

    lines: range
    change: Callable[[], None]


def sites(tree: ast.Module) -> dict[str, Site]:
    """Lists the faults that can be made in a module, by the end of their names."""
    found: dict[str, Site] = {}
    numbers: Counter[tuple[str, str]] = Counter()

    def add(where: str, operator: str, node: Any, change: Callable[[], None]) -> None:
        found[f"{where}:{operator}:{numbers[where, operator]}"] = Site(
            range(node.lineno, (node.end_lineno or node.lineno) + 1), change
        )
        numbers[where, operator] += 1

    def visit(node: ast.AST, where: str) -> None:
        for put, child in _children(node):
            inner = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = child.name if where == "<module>" else f"{where}.{child.name}"
                if child.name in ("__repr__", "__str__"):
                    continue
            if isinstance(child, ast.Raise | ast.JoinedStr) or _only_tells(child):
                if isinstance(child, ast.Raise) and child.exc is not None and where != "<module>":
                    add(where, "raise", child, lambda put=put: put(ast.Pass()))
                continue
            for operator, changed in _faults(node, child):
                if where != "<module>":
                    add(where, operator, child, lambda put=put, changed=changed: put(changed))
            visit(child, inner)

    visit(tree, "<module>")
    return found


def _children(node: ast.AST) -> Iterator[tuple[Callable[[Any], None], ast.AST]]:
    """Yields a node's children, each with what puts another one in its place."""
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns", "type_params", "bases"):
            continue
        if isinstance(value, ast.AST):
            yield lambda new, name=name: setattr(node, name, new), value
        elif isinstance(value, list):
            for number, one in enumerate(value):
                if isinstance(one, ast.AST):
                    yield lambda new, value=value, number=number: value.__setitem__(number, new), one


def _faults(parent: ast.AST, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    is_test = node is getattr(parent, "test", None) or (isinstance(parent, ast.comprehension) and node in parent.ifs)
    if is_test and not isinstance(node, ast.Constant) and not _asks_for_types(node):
        yield "not", ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield "call", ast.Pass()
        case ast.Return(value=ast.Constant(value=bool(told))):
            yield "return", ast.Return(ast.Constant(not told))
        case ast.Compare(left=left, ops=[one], comparators=right) if type(one) in _TURNED:
            if not (is_test and isinstance(one, ast.Eq | ast.NotEq)):
                yield "compare", ast.Compare(left, [_TURNED[type(one)]()], right)
        case ast.BoolOp(op=one, values=values):
            yield "both", ast.BoolOp(ast.Or() if isinstance(one, ast.And) else ast.And(), values)
        case ast.Attribute(value=ast.Name(id="Outcome"), attr=name) if name in _MISREAD:
            yield "outcome", ast.Attribute(ast.Name("Outcome", ast.Load()), _MISREAD[name], ast.Load())
        case ast.keyword(arg=name, value=ast.Constant(value=bool(told))):
            yield "flag", ast.keyword(name, ast.Constant(not told))


def _only_tells(node: ast.AST) -> bool:
    """Returns whether a statement only writes to the log, or calls the constructor above."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    root = ast.unparse(call.func.value)
    return (call.func.attr in _TELLS and root in ("log", "logger", "warnings", "self._log")) or root == "super()"


def _asks_for_types(node: ast.AST) -> bool:
    return ast.unparse(node).removeprefix("not ").startswith(("isinstance(", "TYPE_CHECKING"))


@dataclass(frozen=True)
class Fault:
    """A changed module.

    Attributes:
        name: See the module.
        file: Below ``src/sparkonce``.
        lines: The changed lines.
        compile: Returns the changed code.
    """

    name: str
    file: str
    lines: range
    compile: Callable[[], CodeType]

    @classmethod
    def of_site(cls, name: str) -> Fault:
        """Finds a generated fault by its name.

        Raises:
            KeyError: if the source has changed and it is not there any more.
        """
        file, _, end = name.partition(":")
        tree = ast.parse((SOURCE / file).read_text())
        site = sites(tree)[end]

        def changed() -> CodeType:
            site.change()
            return compile(ast.fix_missing_locations(tree), str(SOURCE / file), "exec")

        return cls(name, file, site.lines, changed)

    @classmethod
    def of_text(cls, name: str, file: str, old: str, new: str) -> Fault:
        """Makes a fault that somebody wrote down as a replacement.

        Raises:
            KeyError: if the source has changed and does not have the old text exactly once.
        """
        source = (SOURCE / file).read_text()
        if source.count(old) != 1:
            raise KeyError(f"{name}: {file} has {source.count(old)} times {old!r}")
        first = source[: source.index(old)].count("\n") + 1
        changed = source.replace(old, new + "\n" * (old.count("\n") - new.count("\n")))
        return cls(
            name,
            file,
            range(first, first + old.count("\n") + 1),
            lambda: compile(changed, str(SOURCE / file), "exec"),
        )

    def apply(self) -> None:
        """Makes this process use the changed module."""
        module = ".".join(["sparkonce", *Path(self.file).with_suffix("").parts]).removesuffix(".__init__")
        if module not in sys.modules:
            sys.meta_path.insert(0, _Finder(module, self.compile))
            return
        codes = {(code.co_name, code.co_firstlineno): code for code in _codes(self.compile())}
        for function in functions().get(str(SOURCE / self.file), ()):
            old = function.__code__
            new = codes.get((old.co_name, old.co_firstlineno), old)
            if (new.co_code, new.co_consts, new.co_names) != (old.co_code, old.co_consts, old.co_names):
                function.__code__ = new


@cache
def functions() -> dict[str, list[FunctionType]]:
    """Returns all functions by the file that defines them. Looking for them is slow: ask before a fork."""
    found: dict[str, list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            found[one.__code__.co_filename].append(one)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


class _Finder(MetaPathFinder):
    def __init__(self, module: str, make: Callable[[], CodeType]) -> None:
        self._module, self._make = module, make

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module or (spec := PathFinder.find_spec(fullname, path, target)) is None:
            return None
        spec.loader = _Loader(fullname, str(spec.origin), self._make)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, make: Callable[[], CodeType]) -> None:
        super().__init__(name, path)
        self._make = make

    def get_code(self, fullname: str) -> CodeType:
        return self._make()
