"""Small changes to Python source that a good test suite notices.

A mutant changes one place: a comparison, an operator, a constant, a condition, or a statement that
is left out. The source is edited as text at the place that the syntax tree names, so the rest of
the file stays as it is. Annotations, docstrings, error texts and code for type checkers are not
changed: no test could or should notice.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "//",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.BitXor: "&",
}
# Calls whose absence changes only what people read, or nothing.
QUIET_CALLS = {"note", "print", "write_line", "debug", "warn", "add_note", "freeze"}


@dataclass(frozen=True)
class Mutant:
    """One change: `text[start:end]` of `path` becomes `replacement`."""

    path: str
    line: int
    start: int
    end: int
    before: str
    replacement: str
    function: str

    @property
    def name(self) -> str:
        """A name that stays when lines above it come or go."""
        what = "\0".join((self.path, self.function, self.before, self.replacement))
        return hashlib.sha256(what.encode()).hexdigest()[:10]

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line} in {self.function}: `{self.before}` -> `{self.replacement}`"
        )


def find_mutants(root: Path, path: Path) -> list[Mutant]:
    """All mutants of one file, in the order of their places."""
    text = path.read_text(encoding="utf-8")
    return list(_Finder(path.relative_to(root).as_posix(), text).find())


def apply(text: str, mutant: Mutant) -> str:
    """The source with this one change."""
    return text[: mutant.start] + mutant.replacement + text[mutant.end :]


class _Finder:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        # The tree counts columns in UTF-8 bytes.
        self.lines = [line.encode() for line in text.splitlines(keepends=True)]
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line.decode()))

    def find(self) -> Iterator[Mutant]:
        seen: dict[str, int] = {}
        found = sorted(self._walk(ast.parse(self.text), "module"), key=lambda m: (m.start, m.end))
        for mutant in found:
            if _compiles(apply(self.text, mutant)):
                # The same change twice in one function gets two names.
                count = seen[mutant.name] = seen.get(mutant.name, 0) + 1
                if count == 1:
                    yield mutant

    def _offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1][:column].decode())

    def _mutant(self, start: int, end: int, replacement: str, function: str) -> Mutant:
        line = self.text.count("\n", 0, start) + 1
        return Mutant(self.path, line, start, end, self.text[start:end], replacement, function)

    def _node(self, node: ast.expr | ast.stmt, replacement: str, function: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno, node.end_col_offset)
        return self._mutant(start, end, replacement, function)

    def _between(
        self, left: ast.expr, right: ast.expr, replacement: str, function: str
    ) -> Iterator[Mutant]:
        """The operator between two expressions, without the white space and brackets around it."""
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        start = self._offset(left.end_lineno, left.end_col_offset)
        end = self._offset(right.lineno, right.col_offset)
        between = self.text[start:end]
        operator = between.strip("() \t\n\\")
        if operator and "#" not in between and "\n" not in operator:
            at = start + between.index(operator)
            yield self._mutant(at, at + len(operator), replacement, function)

    def _walk(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if any(_is_overload(each) for each in node.decorator_list):
                return
            function = node.name if function == "module" else f"{function}.{node.name}"
            if node.name in ("__repr__", "_repr_html_"):
                return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.JoinedStr):
            return
        yield from self._mutate(node, function)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(node, ast.Raise) and name == "exc":
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._walk(child, function)

    def _mutate(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._between(left, right, COMPARISONS[type(op)], function)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                if not _is_type(left) and not _is_type(right):
                    yield from self._between(left, right, OPERATORS[type(op)], function)
            case ast.BoolOp(op=op, values=[left, right, *_]):
                other = "or" if isinstance(op, ast.And) else "and"
                yield from self._between(left, right, other, function)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                start = self._offset(node.lineno, node.col_offset)
                end = self._offset(operand.lineno, operand.col_offset)
                if self.text[start:end].strip() == "not":
                    yield self._mutant(start, end, "", function)
            case ast.Constant(value=bool() as value):
                yield self._node(node, str(not value), function)
            case ast.Constant(value=int() as value) if function != "module":
                yield self._node(node, str(value + 1), function)
            case ast.If(test=test) | ast.While(test=test):
                yield self._node(test, "False", function)
                if isinstance(node, ast.If) and not isinstance(test, ast.Constant):
                    yield self._node(test, "True", function)
            case ast.Expr(value=ast.Call(func=called)) if _last_name(called) not in QUIET_CALLS:
                yield self._node(node, "pass", function)
            case ast.Raise():
                yield self._node(node, "pass", function)
            case ast.Break():
                yield self._node(node, "continue", function)
            case ast.Continue():
                yield self._node(node, "break", function)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self._node(value, "None", function)
            case ast.AugAssign():
                yield self._node(node, "pass", function)


def _is_type(node: ast.expr) -> bool:
    """`int | None` at run time is still a type."""
    return (isinstance(node, ast.Constant) and node.value is None) or (
        isinstance(node, ast.Name) and (node.id in ("int", "str", "float", "bytes", "Path"))
    )


def _is_overload(node: ast.expr) -> bool:
    return _last_name(node) in ("overload", "abstractmethod")


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _compiles(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
