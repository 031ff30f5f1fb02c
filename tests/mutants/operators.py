"""Injects faults into the source of a module: small generated ones, and wrong rules.

A generated fault has a stable name, ``file:function:operator:number``, where the number counts the places in the
function that the operator applies to. No file is changed. The source of the module is compiled with the change. If the
module is already imported, its functions get the new code, otherwise an import hook loads the changed module.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from mutants.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "src" / "sparkonce", *sorted((ROOT / "packages").glob("*/src")))
"""The folders that file names are relative to. Those of other distributions include their package."""

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


def path_of(file: str) -> Path:
    """Returns the path of a file.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    for source in SOURCES:
        if (source / file).exists():
            return source / file
    raise FileNotFoundError(file)


def module_of(file: str) -> str:
    """Returns the name under which a file is imported."""
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return name if path_of(file).is_relative_to(ROOT / "packages") else f"sparkonce.{name}"


def sites(tree: ast.Module) -> dict[str, Site]:
    """Maps the last parts of faults' names to the faults that can be injected into a module."""
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
    """Yields the children of a node, each with a function that replaces it."""
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
    """Returns True if a statement only writes to the log or only calls the constructor above."""
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
        file: The path below one of `SOURCES`.
        lines: The numbers of the changed lines.
        source: Returns the changed source.
    """

    file: str
    lines: range
    source: Callable[[], ast.Module]

    @classmethod
    def of(cls, *names: str) -> list[Fault]:
        """Returns the faults of a wrong rule, one for each file, or a single generated fault.

        Raises:
            KeyError: If the source has changed, so that the location or the text of the rule no longer exists.
        """
        file, _, end = names[0].partition(".py:")
        if end:
            tree = ast.parse(path_of(f"{file}.py").read_text())
            site = sites(tree)[end]

            def changed() -> ast.Module:
                site.change()
                return ast.fix_missing_locations(tree)

            return [cls(f"{file}.py", site.lines, changed)]
        texts: dict[str, str] = {}
        lines: dict[str, list[int]] = {}
        for change in chain(*(RULES[name] for name in names)):
            text = texts.get(change.file) or path_of(change.file).read_text()
            texts[change.file] = change.made(text)
            first = text[: text.index("\n".join(change.old))].count("\n") + 1
            lines.setdefault(change.file, []).extend((first, first + len(change.old)))
        return [
            cls(file, range(min(lines[file]), max(lines[file])), partial(ast.parse, text))
            for file, text in texts.items()
        ]

    def apply(self) -> list[tuple[FunctionType, CodeType]]:
        """Makes this process use the changed module. Returns the functions that were changed, and their code before."""
        module = module_of(self.file)
        if module not in sys.modules:
            sys.meta_path.insert(0, _Finder(module, self._compiled))
            return []
        places = {
            (code.co_name, code.co_firstlineno): place for place, code in _codes(self._compiled(is_changed=False))
        }
        codes, before = dict(_codes(self._compiled())), []
        for function in _functions(sys.modules[module]):
            old = function.__code__
            new = codes[places[old.co_name, old.co_firstlineno]]
            if (new.co_code, new.co_consts, new.co_names) != (old.co_code, old.co_consts, old.co_names):
                before.append((function, old))
                function.__code__ = new
        return before

    def _compiled(self, *, is_changed: bool = True) -> CodeType:
        path = path_of(self.file)
        code: CodeType = compile(self.source() if is_changed else path.read_text(), str(path), "exec")
        return code


@contextmanager
def wrong(name: str) -> Iterator[None]:
    """Applies a wrong rule to the product in this process, as a context manager."""
    faults = Fault.of(name)
    for fault in faults:
        import_module(module_of(fault.file))
    before = [fault.apply() for fault in faults]
    try:
        if not all(before):
            raise AssertionError(f"{name}: a file has a change that is in no function")
        yield
    finally:
        for function, code in chain(*before):
            function.__code__ = code


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yields the functions and methods that a module defines, including decorated ones."""
    owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
    for owner in owners:
        for one in list(vars(owner).values()):
            one = inspect.unwrap(getattr(one, "__func__", getattr(one, "fget", getattr(one, "func", one))))
            if isinstance(one, FunctionType) and one.__code__.co_filename == getattr(module, "__file__", ""):
                yield one


def _codes(code: CodeType, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], CodeType]]:
    """Yields all nested code objects. Each has a place: the names that lead to it, and its index among equal names."""
    counted: Counter[str] = Counter()
    for one in code.co_consts:
        if isinstance(one, CodeType):
            inner = (*place, one.co_name, counted[one.co_name])
            counted[one.co_name] += 1
            yield inner, one
            yield from _codes(one, inner)


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
