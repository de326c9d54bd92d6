"""A Jinja environment in which a hostile template can neither escape nor take long nor grow large.

Jinja's immutable sandbox keeps templates from Python's internals; this one also counts. Loops, macros and
blocks pay by a call woven into their bodies; operators, calls, filters, tests, literals and output pay for
the size of what they touch and make. Filters and methods are allow-lists, because many of Jinja's own can
be asked for gigabytes in one call. Nothing here knows about chats.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from string import Formatter
from typing import Any, cast

from jinja2 import Template, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from spola.text.budget import LimitError, current
from spola.text.filters import bounded_filters, bounded_tests, percent, text_of
from spola.text.weave import WOVEN, Weaver

__all__ = ["MAX_SOURCE", "Sandbox"]

MAX_SOURCE = 100_000  # characters; compiling takes about 12 microseconds for each

_STR_METHODS = frozenset(
    (
        "capitalize",
        "casefold",
        "count",
        "endswith",
        "find",
        "format",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    )
)
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _STR_METHODS),
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    (list, frozenset(("copy", "count", "index"))),
    (tuple, frozenset(("count", "index", "grouper", "list"))),
)
_OBJECTS = (Namespace, LoopContext, Macro, Cycler, Joiner)
_MAX_PIECES = 1_000_000


class _Namespace(Namespace):
    """Jinja's ``namespace``, printed without its contents: they can form a cycle."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}``: marks the assistant's words for training; renders as is."""

    tags = {"generation"}  # noqa: RUF012 - declared so by the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment; ``compile_template`` is its entry. Rendering needs a current ``budget.Budget``.

    Whitespace rules, extensions and missing names behave as in the ``transformers`` library.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            optimized=False,  # folding constants would compute them outside any budget
            cache_size=0,
            finalize=_finalize,
        )
        # Jinja declares its tables as dicts of plain functions, which any callable is at run time.
        filters: Any = self.filters
        tests: Any = self.tests
        self.filters = bounded_filters(filters) | WOVEN
        self.tests = cast(Any, bounded_tests(tests))
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace

    def compile_template(self, source: str) -> Template:
        """Raises jinja2.TemplateSyntaxError, or LimitError for a source that is too long."""
        if len(source) > MAX_SOURCE:
            raise LimitError(f"it is {len(source)} characters long; at most {MAX_SOURCE} are possible")
        tree = self.parse(source)
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise TemplateSyntaxError("other files cannot be included, imported or extended", node.lineno)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # Python's advice on the template's own nonsense
            code = self.compile(Weaver().visit(tree))
        return Template.from_code(self, code, self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _METHODS:
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, _OBJECTS) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        template: str = value.__self__
        fields = 1
        for _, name, spec, _ in Formatter().parse(template):
            if name is not None:
                fields += 1
                if spec and ("{" in spec or re.search(r"\d{4}", spec)):
                    raise SecurityError("a width of more than three digits in format()")

        def bounded(*args: Any, **kwargs: Any) -> str:
            budget = current()
            weight = sum(budget.walk(arg) for arg in (*args, *kwargs.values()))
            budget.size(len(template) + 1000 * fields + 64 * weight * fields)
            return inner(*args, **kwargs)

        return bounded

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, (tuple, frozenset)):
            raise SecurityError("a tuple as a subscript")
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise SecurityError(
                f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe"
            )
        return super().unsafe_undefined(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.spend(4 + len(args) // 4 + len(kwargs) // 4)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            args = _check_str_call(owner, obj.__name__, args, kwargs)
        elif isinstance(owner, (list, tuple, dict, LoopContext)) or isinstance(obj, type):
            budget.walk(args)  # it may be hashed or compared
            if isinstance(owner, (list, tuple)):
                budget.walk(owner)
        return budget.made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current()
        budget.spend(1)
        if operator == "%" and isinstance(left, str):
            return percent(left, right)
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
            _check_product(right, left)
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            budget.size(len(left) + len(right))
        return budget.made(super().call_binop(context, operator, left, right))


def _check_power(base: Any, exponent: Any) -> None:
    large = isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > 4096
    if large and abs(base) > 1:
        raise LimitError("it computes a number that is too large")


def _check_product(value: Any, times: Any) -> None:
    if not isinstance(times, int):
        return
    if isinstance(value, str):
        current().size(len(value) * times)
    elif isinstance(value, (list, tuple)):
        current().items(len(value) * times)


def _check_str_call(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Refuse a method call on a string whose result would be too large; returns the arguments to use."""
    budget = current()
    budget.walk(owner)
    for arg in args:
        budget.walk(arg)
    longest = max((len(arg) for arg in args if isinstance(arg, str)), default=0)
    if name.endswith("strip") or name in ("rfind", "rindex", "rpartition", "rsplit"):
        # These compare every character with every character of the argument, in the worst case.
        budget.spend(len(owner) * longest // 1024)
    if name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        budget.size(len(owner) + owner.count(args[0]) * max(0, len(args[1]) - len(args[0])))
    elif name == "join" and args:
        items = [item for item in budget.counted(iter(args[0])) if budget.walk(item)]
        budget.size(sum(map(len, items)) + len(owner) * len(items))
        return (items,)
    elif name in ("split", "rsplit", "splitlines"):
        separator = args[0] if args else kwargs.get("sep")
        pieces = owner.count(separator) if isinstance(separator, str) and separator else len(owner) // 2
        budget.items(min(pieces, _MAX_PIECES + 1))
    return args


@pass_context  # so that Jinja does not call it while compiling
def _finalize(context: Context, value: Any) -> Any:
    if isinstance(value, str):
        current().text(value)
        return value
    return text_of(value)
