"""A recipe's text: selected, rendered and parsed, with each step cached by its inputs."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, RecipeFault, raise_all
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.serialization import mappings_in_list
from kiln.base.yaml import Document, ScalarInterpretation, parse_document, read_text
from kiln.recipe.template.jinja import StepLimitedEnvironment, Template
from kiln.recipe.template.selectors import BoundedDict, SelectableText, SelectedText
from kiln.recipe.v0 import functions
from kiln.recipe.v0.used_keys import SECTIONS, check_line_length

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping
    from pathlib import Path

    from kiln.recipe.template.names import Doubts, Namespace

_SECTIONS = ("package", "build", "requirements", "app", "test", "about", "extra")
_LISTS = ("source", "outputs")
_TEXTS = (("test", "commands"), ("build", "script"), *(("requirements", section) for section in SECTIONS))
_BUILD_NAMES = {
    # Names of conda-build's environment, as a build script would write them: the paths are known only to a build.
    "CONDA_BUILD": "1", "CONDA_BUILD_STATE": "RENDER", "PYTHONNOUSERSITE": "1", "PREFIX": "$PREFIX",
    "BUILD_PREFIX": "$BUILD_PREFIX", "SRC_DIR": "$SRC_DIR", "SP_DIR": "$SP_DIR", "STDLIB_DIR": "$STDLIB_DIR",
    "PYTHON": "$PYTHON", "PERL": "$PERL", "LUA": "$LUA", "R": "$R", "CONDA_DEFAULT_ENV": "$PREFIX",
    "SYS_PREFIX": "$SYS_PREFIX", "SYS_PYTHON": "$SYS_PYTHON", "ROOT": "$ROOT", "CPU_COUNT": "$CPU_COUNT",
    "HOME": "$HOME", "PATH": "$PATH", "PKG_CONFIG_PATH": "$PREFIX/lib/pkgconfig", "CMAKE_GENERATOR": "Unix Makefiles",
    "LD_RUN_PATH": "$PREFIX/lib", "HTTP_PROXY": "", "HTTPS_PROXY": "", "REQUESTS_CA_BUNDLE": "", "DIRTY": "",
    "NPY_DISTUTILS_APPEND_FLAGS": "1",
}  # fmt: skip
_SET = lazy_pattern(r"\{%-?\s*(?:set|for|macro)\s+([\w\s,]+)")
_BLOCK = lazy_pattern(r"\{%-?\s*(?:if|for)\b")
_BLOCK_END = lazy_pattern(r"\{%-?\s*end(?:if|for)\b")
_KEY = lazy_pattern(r"[\s-]*['\"]?([^\s:'\"{]+)['\"]?\s*:")
GIT_NAME = lazy_pattern(r"(?:GIT|HG)_[A-Z_0-9]+")  # names that are defined once the source is checked out
_OF_REVISION = lazy_pattern(r"GIT_(?:DESCRIBE_|BUILD_STR|FULL_HASH)")  # the names that git answers
_PACKAGE = frozenset({"PKG_NAME", "PKG_VERSION", "PKG_BUILDNUM", "PKG_HASH", "PKG_BUILD_STRING"})
_EVERY = functions.NAMES | _BUILD_NAMES.keys() | _PACKAGE
_LANGUAGE = {
    "CONDA_PY": "python", "PY3K": "python", "PY_VER": "python", "NPY_VER": "numpy", "CONDA_NPY": "numpy",
    "PERL_VER": "perl", "CONDA_PERL": "perl", "LUA_VER": "lua", "CONDA_LUA": "lua", "R_VER": "r_base",
    "CONDA_R": "r_base",
}  # fmt: skip


class RecipeTemplate:
    """The file ``meta.yaml``, shared by all platforms and variants of one run.

    ``known`` are the keys of all variant files; ``all_known`` is false where other files may have more. ``doubts``
    collects the undefined names of selectors, which are errors without it.
    """

    def __init__(
        self, path: Path, name: str, known: frozenset[str], *, all_known: bool = True, doubts: Doubts | None = None
    ) -> None:
        self.path = path
        self.folder = path.parent.resolve()
        self.name = name
        self.known = known
        self.all_known = all_known
        self.doubts = doubts
        self._environment = StepLimitedEnvironment(self._included_file_text)
        self._templates: BoundedDict[str, Template] = BoundedDict(256)
        self._documents: BoundedDict[str, Mapping[str, Any]] = BoundedDict(256)
        self._rendered: BoundedDict[tuple[object, ...], tuple[str, set[str]]] = BoundedDict(512)
        self._names: Namespace | None = None
        self.replace_text(read_text(path, name))

    def replace_text(self, text: str) -> None:
        """Take another text in place of the file's; all caches stay, for they are by text.

        Raises:
            KilnError: a line is too long.
        """
        self.text = SelectableText(text, self.name)
        texts = (line.text.lstrip() for line in self.text.lines)  # those of comments are empty
        if not any(text and not text.startswith("{%") for text in texts):
            raise RecipeFault("the recipe is empty", at=Place(file=self.name, line=1), hint="begin with package:")
        self.set_names = frozenset(word for result in _SET.findall(text) for word in re.findall(r"\w+", result))
        self.names_revision = _OF_REVISION.search(text) is not None
        self._conditional = _keys_in_jinja_blocks(text)
        self._check_line_lengths()

    def _check_line_lengths(self) -> None:
        for number, line in enumerate(self.text.text.splitlines(), 1):
            try:
                check_line_length(line)
            except KilnError as error:
                raise type(error)(error.what, at=Place(file=self.name, line=number), hint=error.hint) from error

    def _included_file_text(self, name: str) -> str:
        """Return the text of an included file, with selectors applied as in the recipe."""
        assert self._names is not None
        return SelectableText(functions.read_recipe_file(self.path.parent, name), name).select(self._names).text

    @contextlib.contextmanager
    def without_judgment(self) -> Iterator[None]:
        """Have nothing judged in the block, which renders the recipe before its variant is known."""
        self._environment.permissive = True
        try:
            yield
        finally:
            self._environment.permissive = False

    def compiled_template(self, selected: SelectedText) -> Template:
        """Return the compiled template of a selected text."""
        template = self._templates.get(selected.text)
        if template is None:
            template = self._templates[selected.text] = Template(selected, self.name, self._environment)
        return template

    def parsed_values(self, text: str, selected: SelectedText, again: Callable[[], str]) -> Mapping[str, Any]:
        """Return the values of a rendered text; ``again`` renders it with line marks, to locate a fault."""
        sections = self._documents.get(text)
        if sections is None:
            try:
                document = parse_document(text, self.name, ScalarInterpretation.WORDS, may_repeat=self._may_repeat_key)
            except KilnError as error:
                raise self._error_with_place(error, selected, again) from error
            sections = self._documents[text] = self._validated_sections(document)
        return sections

    def _may_repeat_key(self, key: str) -> bool:
        # Under a selector or a condition a key may be repeated, and conda-build takes the last.
        return self.text.is_key_under_selector(key) or key in self._conditional

    def _error_with_place(self, error: KilnError, selected: SelectedText, again: Callable[[], str]) -> KilnError:
        """Return the error of a rendered text with its place in the recipe."""
        line = error.at.line if error.at else 0
        marked = again().split("\n")
        for text in reversed(marked[: max(line, 1)]):
            if mark := re.search(r"\x1e(\d+)\x1e", text):
                number = selected.line_in_file(int(mark[1]))
                column = error.at.column if error.at else 0
                at = Place(file=self.name, line=number, column=column)
                return self._cut_line_error(error, selected.numbers, number) or type(error)(
                    error.what, at=at, why=error.why, hint=error.hint
                )
        return error

    def _cut_line_error(self, error: KilnError, numbers: Container[int], last: int) -> KilnError | None:
        """Return the error at the line that a selector has cut within its text, which YAML sees lines later."""
        lines = self.text.text.splitlines()
        for line in reversed(self.text.lines[:last]):
            rest = lines[line.number - 1][len(line.text) : line.column - 1].lstrip()
            if line.commented and line.number in numbers and "#" in rest[1:]:
                return type(error)(
                    f"the selector [{line.selector}] takes the text from the first '#' of its line on for a comment",
                    at=Place(file=self.name, line=line.number, column=lines[line.number - 1].index("#") + 1),
                    why=f"conda-build reads lines so; what is left is not valid YAML: {error.what}",
                    hint="write the '#' in another way, such as by {% set mark = '#' %} and {{ mark }}",
                )
        return None

    def _validated_sections(self, document: Document) -> Mapping[str, Any]:
        value = document.value if document.value is not None else {}
        if not isinstance(value, dict):
            raise RecipeFault("a recipe is a mapping of sections", at=document.place_of_key())
        sections = dict(value)
        for name in (*_SECTIONS, *_LISTS):
            if name in sections:
                sections[name] = self._validated_section(name, sections[name] or {}, document)
        raise_all(list(self._mapping_instead_of_text_errors(sections)))
        return sections

    def _mapping_instead_of_text_errors(self, sections: Mapping[str, Any]) -> Iterator[RecipeFault]:
        """Yield a fault for each item with a colon that YAML reads as a mapping, where items are texts."""
        for holder in (sections, *mappings_in_list(sections.get("outputs"))):
            for section, key in _TEXTS:
                values = holder.get(section)
                for item in mappings_in_list(values.get(key) if isinstance(values, dict) else None):
                    yield self._mapping_instead_of_text_error(f"{section}/{key}", item)

    def _mapping_instead_of_text_error(self, where: str, item: Mapping[str, Any]) -> RecipeFault:
        name = str(next(iter(item), ""))
        of_key = re.compile(rf"(\s*-\s+)(['\"]?){re.escape(name)}\2\s*:")
        places = ((line.number, match.end(1) + 1) for line in self.text.lines if (match := of_key.match(line.text)))
        line, column = next(places, (0, 0))
        return RecipeFault(
            f"{where} has a mapping instead of text",
            at=Place(file=self.name, line=line, column=column),
            why=f"to YAML a colon with a space after it separates a key from its value: {str(dict(item))[:80]}",
            hint="write a space for the colon" if where.startswith("requirements") else "quote the whole item",
        )

    def _validated_section(self, name: str, value: Any, document: Document) -> Any:
        allowed = (dict, list) if name in _LISTS else (dict,)
        if not isinstance(value, allowed):
            what = f"the section {name!r} is {'a list' if isinstance(value, list) else 'text'}"
            raise RecipeFault(what, at=document.place_of_key(name), hint="write keys below it, one a line")
        for item in value if isinstance(value, list) else ():
            if not isinstance(item, dict):
                what = f"an entry of {name!r} is {str(item)[:40]!r}, which is not a mapping"
                raise RecipeFault(what, at=document.place_of_key(name), hint="begin it with '- name: ...'")
        return value

    def rendered_text(
        self,
        selected: SelectedText,
        names: Namespace,
        context: Callable[[], Callable[[str], Any]],
        extra: tuple[object, ...],
        undefined: set[str] | None = None,
    ) -> str:
        """Return the text after Jinja.

        ``context`` returns the function that returns a name's value or raises KeyError; ``extra`` are the values on
        which the text depends apart from the names in the template. ``undefined`` collects the names of the source's
        revision that are written without a value.
        """
        template = self.compiled_template(selected)
        key = (selected.text, names.cache_key_values(template.asked), extra, self._environment.permissive)
        text, of_revision = self._rendered.get(key) or (None, set())
        if text is None:
            self._names = names
            names_read = template.asked if template.names is not None else names.suggested_names() | _EVERY
            values = dict(_values_of_defined_names(names_read, context()))
            text = template.render(values, self._empty_names_predicate(names, of_revision), values.keys() | self.known)
            self._rendered[key] = (text, of_revision)
        if undefined is not None:
            undefined |= of_revision
        return text

    def rendered_text_with_line_marks(
        self, selected: SelectedText, names: Namespace, context: Callable[[], Callable[[str], Any]]
    ) -> str:
        """Return the rendered text with each line's number in the selected text, where a line can carry it."""
        lines = [_with_line_mark(number, line) for number, line in enumerate(selected.text.split("\n"), 1)]
        try:
            return self.rendered_text(
                SelectedText(text="\n".join(lines), numbers=selected.numbers), names, context, ("marked",)
            )
        except KilnError:
            return ""

    def _empty_names_predicate(self, names: Namespace, of_revision: set[str]) -> Callable[[str], bool]:
        def may_be_empty(name: str) -> bool:
            if name in self.set_names:  # it is not a mistake where the selector of its line does not hold
                return True
            if GIT_NAME.fullmatch(name):
                of_revision.add(name)
                return True
            return names.is_known(name)

        return may_be_empty


def _keys_in_jinja_blocks(text: str) -> frozenset[str]:
    depth, keys = 0, set()
    for line in text.splitlines():
        depth += len(_BLOCK.findall(line)) - len(_BLOCK_END.findall(line))
        if depth > 0 and (match := _KEY.match(line)):
            keys.add(match[1])
    return frozenset(keys)


def _values_of_defined_names(names: Iterable[str], value: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    for name in names:
        try:
            yield name, value(name)
        except KeyError:
            continue


def _with_line_mark(number: int, line: str) -> str:
    inside = line.count("{%") != line.count("%}") or line.count("{{") != line.count("}}") or "{#" in line
    return line if inside or not line.strip() else f"{line}\x1e{number}\x1e"


def language_version_variable(name: str, variant: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the value of one of conda-build's names for a language's version, such as ``PY_VER``."""
    language = _LANGUAGE[name]
    version = str(variant.get(language) or defaults[language])
    parts = version.split(".")
    if name == "PY3K":
        return str(int(version[:1] >= "3"))
    if name in {"CONDA_PY", "CONDA_NPY"}:
        return "".join(parts[:2])
    return ".".join(parts[: 3 if language == "r_base" else 2])
