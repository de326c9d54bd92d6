"""Puts payments into a template's syntax tree, where Jinja's sandbox has no hook of its own.

Bodies of loops, macros and blocks pay as they are entered; literals, slices, concatenation and comparison
pay for what they make or look at. The payments are filters under names that no template can write.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from spola.text.budget import current
from spola.text.filters import text_of

__all__ = ["WOVEN", "Weaver"]

_TICK, _MADE, _WALK, _JOIN = " tick", " made", " walk", " join"


def _tick(cost: int) -> bool:
    current().spend(max(1, cost))
    return True


def _made(value: Any) -> Any:
    return current().made(value)


def _walk(value: Any) -> Any:
    current().walk(value)
    return value


def _join(values: list[Any]) -> str:
    budget = current()
    texts = [text_of(value) for value in values]
    budget.size(sum(map(len, texts)))
    joined = "".join(texts)
    budget.text(joined)
    return joined


WOVEN: dict[str, Any] = {_TICK: _tick, _MADE: _made, _WALK: _walk, _JOIN: _join}


class Weaver(NodeTransformer):
    """Puts the payments into a syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, _pay(cost, node))
        if node.test is not None:
            # The test also runs for elements that it filters out.
            paid = _filter(nodes.Const(1 + _cost([node.test])), _TICK, node)
            node.test = nodes.And(paid, node.test, lineno=node.lineno)
        return node

    def _body(self, node: Any) -> nodes.Node:
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, _pay(cost, node))
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = _body

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        if all(isinstance(item, nodes.Const) for item in node.items):
            return node
        return _filter(node, _MADE, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        if node.ctx != "load" or all(isinstance(item, nodes.Const) for item in node.items):
            return node
        return _filter(node, _MADE, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                pair.key = _filter(pair.key, _WALK, node)  # a key is hashed, all of it
        return _filter(node, _MADE, node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _JOIN, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        # Jinja compiles slices to Python's own subscripts, past ``getitem``.
        return _filter(node, _MADE, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        within = any(operand.op in ("in", "notin") for operand in node.ops)
        if not within and any(isinstance(operand, nodes.Const) for operand in operands):
            return node  # against a constant, at most the constant's length is compared
        node.expr = _walked(node.expr)
        for operand in node.ops:
            operand.expr = _walked(operand.expr)
        return node


def _filter(value: nodes.Expr, name: str, at: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=at.lineno)


def _walked(operand: nodes.Expr) -> nodes.Expr:
    items = operand.items if isinstance(operand, (nodes.List, nodes.Tuple)) else [operand]
    if all(isinstance(item, nodes.Const) for item in items):
        return operand
    return _filter(operand, _WALK, operand)


def _pay(cost: int, at: nodes.Node) -> nodes.ExprStmt:
    paid = _filter(nodes.Const(cost, lineno=at.lineno), _TICK, at)
    return nodes.ExprStmt(paid, lineno=at.lineno)


def _cost(body: list[Any]) -> int:
    """Steps of running ``body`` once, without the bodies inside it that pay for themselves."""
    total = 0
    stack = list(body)
    while stack:
        node = stack.pop()
        total += 16
        if isinstance(node, nodes.TemplateData):
            total += len(node.data) // 8
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            total += len(node.value) // 8
        skip = ("body",) if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)) else ()
        stack.extend(node.iter_child_nodes(exclude=skip))
    return 1 + total // 64
