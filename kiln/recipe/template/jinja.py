"""Jinja templates in a sandbox that records undefined names, bounds the work, and reports the line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, new_context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from kiln.base.errors import KilnError, TemplateFault, UnsafeTemplate, did_you_mean
from kiln.base.limits import errors
from kiln.base.position import Place
from kiln.recipe.template.names import NotSeparable, cut_into_pieces
from kiln.recipe.template.selectors import BoundedDict, SelectedText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import CodeType, TracebackType


_FILE = "<recipe>"
_MAX_STEPS = 200_000
COUNTED = "_kiln_counted"


class StepBudgetExhausted(Exception):
    """The template needs more steps than any recipe does."""


class StepBudget:
    """The remaining steps of one rendering."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset the budget to its maximum."""
        self._steps = _MAX_STEPS

    def spend_step(self) -> None:
        """Spend one step on a loop iteration or a call."""
        self._steps -= 1
        if self._steps < 0:
            raise StepBudgetExhausted(f"more than {_MAX_STEPS:,} loop steps and calls")

    # It takes the context, which it does not need, because Jinja would otherwise evaluate it once at compile time.
    @pass_context
    def count_iterations(self, _: Context, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items and spend one step on each."""
        for item in items:
            self.spend_step()
            yield item


def insert_step_counting(tree: nodes.Template) -> None:
    """Change a template's tree so that it spends its budget on every loop iteration."""
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, COUNTED, [], [], None, None, lineno=loop.iter.lineno)


class UndefinedValue(jinja2.Undefined):
    """An undefined value: false, empty, equal to other undefined values; whatever is done with it stays undefined.

    A recipe is rendered before its variants are known, so a key may have no value yet: attributes, methods, items and
    arithmetic are those of any value. The names are recorded, for the judgment once the variant is known.
    """

    uses: ClassVar[list[str]]  # the undefined names that a rendering used other than in a test
    permissive: ClassVar[bool] = False  # true while no variant is known: what a value lacks is as undefined as a name

    def _record_use(self) -> None:
        if self._undefined_obj is missing and self._undefined_name:
            self.uses.append(self._undefined_name)

    def _undefined_result(self, *_: Any, **__: Any) -> UndefinedValue:
        self._record_use()
        return type(self)(self._undefined_hint, self._undefined_obj, self._undefined_name)

    __add__ = __radd__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _undefined_result  # type: ignore[assignment]
    __floordiv__ = __rfloordiv__ = _undefined_result  # type: ignore[assignment]
    __mod__ = __rmod__ = __pos__ = __neg__ = __call__ = __getitem__ = __pow__ = __rpow__ = _undefined_result  # type: ignore[assignment]
    __sub__ = __rsub__ = _undefined_result  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        lacking = self._undefined_obj is not missing and not self.permissive
        if name.startswith("__") or lacking:  # a protocol of Python or Jinja; what a value lacks
            return super().__getattr__(name)
        return self._undefined_result()

    def _undefined_comparison(self, _: Any) -> UndefinedValue:
        return type(self)(self._undefined_hint, self._undefined_obj, self._undefined_name)

    __lt__ = __le__ = __gt__ = __ge__ = _undefined_comparison  # type: ignore[assignment]

    def __str__(self) -> str:
        self._record_use()
        return ""

    __repr__ = __str__

    def __int__(self) -> int:  # type: ignore[override]
        self._record_use()
        return 0

    def __float__(self) -> float:  # type: ignore[override]
        self._record_use()
        return 0.0


class StepLimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which loop iterations and calls spend a budget."""

    def __init__(self, load: Callable[[str], str]) -> None:
        self.uses: list[str] = []
        self.budget = StepBudget()
        self._compiled: dict[str, CompiledTemplatePiece] = {}
        self._undefined: type[UndefinedValue] = type("Recorded", (UndefinedValue,), {"uses": self.uses})
        # Not optimized: constants are evaluated when the template runs, where the budget applies, not when it compiles.
        super().__init__(undefined=self._undefined, loader=jinja2.FunctionLoader(load), cache_size=0, optimized=False)
        self.filters = {**self.filters, COUNTED: self.budget.count_iterations}
        self.globals.pop("lipsum", None)

    @property
    def permissive(self) -> bool:
        """True while no variant is known: nothing that fails is judged, and a piece that does is empty."""
        return bool(self._undefined.permissive)

    @permissive.setter
    def permissive(self, value: bool) -> None:
        self._undefined.permissive = value

    def compiled_piece(self, text: str) -> CompiledTemplatePiece:
        """Return the compiled piece of a text; each text is compiled once."""
        piece = self._compiled.get(text)
        if piece is None:
            piece = self._compiled[text] = CompiledTemplatePiece(text, self)
        return piece

    def code_of_piece(self, text: str) -> PieceCode:
        """Return the code of a text, which spends the budget; environments of the same syntax and filters share it."""
        key = (text, self.variable_start_string, *self.filters)
        piece = _PIECE_CODES.get(key)
        if piece is None:
            tree = self.parse(text)
            includes = any(tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)))
            names = [(name.name, name.ctx) for name in tree.find_all(nodes.Name)]
            loads = frozenset(name for name, use in names if use == "load")
            sets = frozenset(name for name, use in names if use != "load")
            insert_step_counting(tree)
            code = self.compile(tree, filename=_FILE)
            piece = _PIECE_CODES[key] = PieceCode(code=code, includes=includes, loads=loads, sets=sets)
        return piece

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """Raise an error for what the sandbox does not allow, instead of returning an undefined value."""
        raise SecurityError(f"the attribute {attribute!r} of {type(obj).__name__} may not be used")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as the base class
        """Return the result of a call after spending one step."""
        __self.budget.spend_step()
        return super().call(__context, __obj, *args, **kwargs)


class PieceCode(NamedTuple):
    """The code of a piece of a template, and the names that it reads and sets."""

    code: CodeType
    includes: bool
    loads: frozenset[str]
    sets: frozenset[str]


class CompiledTemplatePiece:
    """A compiled piece of a template, with the names that it reads and sets."""

    def __init__(self, text: str, environment: StepLimitedEnvironment) -> None:
        code, self.includes, self.loads, self.sets = environment.code_of_piece(text)
        self.template = jinja2.Template.from_code(environment, code, environment.globals)


# By the text, the syntax and the filters of the environment.
_PIECE_CODES: BoundedDict[tuple[str, ...], PieceCode] = BoundedDict(1024)


class Template:
    """A compiled template; ``names`` are those that it reads, None when it may read any (it includes files)."""

    def __init__(self, selected: SelectedText, file: str, environment: StepLimitedEnvironment) -> None:
        self._selected = selected
        self._file = file
        self._environment = environment
        self._pieces = list(self._compile_pieces(selected.text))
        pieces = [piece for _, piece in self._pieces if isinstance(piece, CompiledTemplatePiece)]
        loads = frozenset[str]().union(*(piece.loads for piece in pieces))
        self.names = None if any(piece.includes for piece in pieces) else loads
        self.asked = tuple(sorted(self.names or ()))
        self.sets = frozenset[str]().union(*(piece.sets for piece in pieces))

    def _compile_pieces(self, text: str) -> Iterator[tuple[int, CompiledTemplatePiece | str]]:
        """Yield the pieces, each with the line (from 0) at which it begins; plain text is not compiled."""
        self._record_place_of_line(1)
        try:
            parts = cut_into_pieces(text)
        except NotSeparable:
            parts = [(0, text, True)]
        for start, part, needed in parts:
            self._record_place_of_line(start + 1)
            try:
                yield start, self._environment.compiled_piece(part) if needed else part
            except jinja2.TemplateSyntaxError as error:
                at = self._place_of_line(start + error.lineno)
                raise TemplateFault("malformed Jinja", at=at, why=error.message or "") from error
            except (SyntaxError, ValueError, OverflowError) as error:
                # Faults that Jinja accepts and Python does not, such as a repeated argument.
                what = getattr(error, "msg", "") or str(error)
                raise TemplateFault("malformed Jinja", at=self._place_of_line(start + 1), why=what) from error
            except RecursionError as error:
                raise UnsafeTemplate("the template is nested too deeply", at=self._place_of_line(start + 1)) from error

    def render(self, context: Mapping[str, Any], known: Callable[[str], bool], near: Iterable[str]) -> str:
        """Return the rendered text; a name without a value is empty where ``known`` returns true for it.

        Raises:
            TemplateFault: the template fails, or writes an undefined name.
            UnsafeTemplate: it uses what the sandbox does not allow, or too much time or memory.
        """
        environment = self._environment
        text = "\n".join(part for _, part in self._render_pieces(context))
        for name in environment.uses:
            if name not in self.sets and not known(name):
                raise self._undefined_name_error(name, {*near, *self.sets})
        return text

    def render_with_line_numbers(self, context: Mapping[str, Any]) -> SelectedText:
        """Return the rendered text with the line of the file for each line; a loop's lines count from its first.

        Raises:
            TemplateFault, UnsafeTemplate: as for `render`; undefined names are what the environment makes of them.
        """
        lines: list[str] = []
        numbers: list[int] = []
        ends = [*(start for start, _ in self._pieces[1:]), self._selected.text.count("\n") + 1]
        for end, (start, part) in zip(ends, self._render_pieces(context), strict=True):
            for index, line in enumerate(part.split("\n")):
                lines.append(line)
                numbers.append(self._selected.line_in_file(min(start + index + 1, end)))
        return type(self._selected)(text="\n".join(lines) + "\n", numbers=tuple(numbers))

    def _render_pieces(self, context: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
        """Yield the rendered text of each piece, with the line (from 0) at which the piece begins."""
        environment = self._environment
        environment.budget.reset()
        environment.uses.clear()
        shared = new_context(environment, None, {}, dict(context), shared=False, globals=environment.globals)
        for start, piece in self._pieces:
            yield start, piece if isinstance(piece, str) else self._render_piece(start, piece, shared)

    def _render_piece(self, start: int, piece: CompiledTemplatePiece, context: Context) -> str:
        self._record_place_of_line(start + 1)
        try:
            return "".join(piece.template.root_render_func(context))  # names that it sets stay in the context
        except KilnError as error:
            at = error.at or self._place_of_error(error, start, piece)
            raise type(error)(error.what, at=at, why=error.why, hint=error.hint) from error
        except (MemoryError, errors.OutOfTime) as error:
            errors.record_place(self._file, self._place_of_error(error, start, piece).line)
            raise
        except (SecurityError, StepBudgetExhausted, RecursionError) as error:
            why = str(error) or type(error).__name__
            at = self._place_of_error(error, start, piece)
            raise UnsafeTemplate("the template does what the sandbox does not allow", at=at, why=why) from error
        except Exception as error:
            if self._environment.permissive:
                return ""
            why = f"{type(error).__name__}: {error}"
            raise TemplateFault("the template fails", at=self._place_of_error(error, start, piece), why=why) from error

    def _undefined_name_error(self, name: str, near: Iterable[str]) -> TemplateFault:
        inside = re.compile(rf"\{{[{{%][^}}]*?(?<![\w.'\"]){re.escape(name)}(?!\w)")
        at = Place(file=self._file)
        for number, line in enumerate(self._selected.text.split("\n"), 1):
            if match := inside.search(line):
                column = match.end() - len(name) + 1
                at = Place(file=self._file, line=self._selected.line_in_file(number), column=column)
                break
        hint = did_you_mean(name, near) or "set it with {% set %} or in conda_build_config.yaml"
        return TemplateFault(f"the name {name!r} is undefined", at=at, why="it would become empty text", hint=hint)

    def _record_place_of_line(self, line: int) -> None:
        errors.record_place(self._file, self._selected.line_in_file(line))

    def _place_of_line(self, line: int) -> Place:
        return Place(file=self._file, line=self._selected.line_in_file(line))

    def _place_of_error(self, error: BaseException, start: int, piece: CompiledTemplatePiece) -> Place:
        trace: TracebackType | None = error.__traceback__
        line = 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                line = piece.template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return self._place_of_line(start + max(line, 1))
