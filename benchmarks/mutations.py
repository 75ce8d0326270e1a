"""Small faults put into Python source, one at a time: what a mutation run plants, and where it may.

A fault is another operator, a comparison whose end moves, a condition turned round, a number one larger, a statement
that is not executed. Left out is what no test can or should see: annotations, docstrings, the words of errors, how
objects print, branches for other operating systems.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "any": "all", "floor": "ceil", "amin": "amax", "minimum": "maximum", "zeros": "ones"}
NAMES |= {after: before for before, after in NAMES.items()}
UNSEEN = ("__repr__", "__rich__", "__str__", "_repr_html_")
"""Methods that only say how an object prints."""


@dataclass(frozen=True)
class Mutation:
    """One fault.

    Attributes:
        path: of the file, from the root of the repository.
        first, last: lines of the expression or statement it replaces, counted from 1.
        start, end: its bytes in the file.
        before, after: its text.
        statement: whether it is one, and no expression.
    """

    path: str
    first: int
    last: int
    start: int
    end: int
    before: str
    after: str
    statement: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.first}: {' '.join(self.before.split())} -> {self.after}"


def planted(source: bytes, faults: list[tuple[int, Mutation]]) -> bytes:
    """A file's bytes with all of these numbered faults in it, each where ``planted(number)`` is true."""
    mark = b"from __future__ import annotations\n"  # every file with code in it has it
    faults = sorted(faults, key=lambda fault: (fault[1].start, -fault[1].end))
    return _within(source, 0, len(source), faults).replace(
        mark, mark + b"from _planted import planted as _planted\n", 1
    )


def _within(source: bytes, start: int, end: int, faults: list[tuple[int, Mutation]]) -> bytes:
    """Some bytes of a file with the faults in them; an inner one lies in what an outer one leaves as it is."""
    out = b""
    while faults:
        (number, outer), *rest = faults
        inner = [fault for fault in rest if fault[1].start < outer.end]
        faults = rest[len(inner) :]
        before, asks = _within(source, outer.start, outer.end, inner), b"_planted(%d)" % number
        out += source[start : outer.start]
        if outer.statement:
            indent = source[source.rfind(b"\n", 0, outer.start) + 1 : outer.start]
            out += b"if %s: %s\n%selse: %s" % (asks, outer.after.encode(), indent, before)
        else:
            out += b"(%s if %s else (%s))" % (outer.after.encode(), asks, before)
        start = outer.end
    return out + source[start:end]


def mutations(root: Path, path: Path) -> list[Mutation]:
    """Every fault that can be put into one file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, after in _faults(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = source[start:end].decode()
        name = path.relative_to(root).as_posix()
        last, statement = node.end_lineno or node.lineno, isinstance(node, ast.AugAssign)
        found.append(Mutation(name, node.lineno, last, start, end, before, after, statement))
    return found


def _faults(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Expressions and statements with the text that replaces them."""
    for child in _seen(node):
        yield from _own(child)
        yield from _faults(child)


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that faults are put into."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise | ast.Import):
                continue
            if isinstance(child, ast.FunctionDef) and child.name in UNSEEN:
                continue
            if isinstance(child, ast.If) and any(w in ast.unparse(child.test) for w in ("platform", "TYPE_CHECKING")):
                continue
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) in ("__all__", "__slots__"):
                continue
            yield child


def _own(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Faults of this very node."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_union(node):
        yield node, f"({ast.unparse(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed = ast.Compare(node.left, [OPERATORS[type(node.ops[0])]()], node.comparators)
        yield node, f"({ast.unparse(changed)})"
    elif isinstance(node, ast.BoolOp):
        yield node, f"({ast.unparse(ast.BoolOp(OPERATORS[type(node.op)](), node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield node, str(not node.value) if isinstance(node.value, bool) else f"({node.value!r} + 1)"
    elif isinstance(node, ast.Call) and (name := _called(node)) in NAMES:
        yield node.func, ast.unparse(node.func).removesuffix(name) + NAMES[name]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "None"
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield node, ast.unparse(ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value))
    if isinstance(node, ast.If | ast.IfExp):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


def _is_union(node: ast.BinOp) -> bool:
    """Whether ``A | B`` may be a union of types, as isinstance takes it."""
    plain = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.BinOp)
    return isinstance(node.op, ast.BitOr) and isinstance(node.left, plain) and isinstance(node.right, plain)


def _called(node: ast.Call) -> str:
    """The last name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
