"""The proof of a conversion: both recipes are rendered for every config, and their packages are compared.

Other configs are no difference as long as all of them together give the same packages: rattler-build and conda-smithy
divide a recipe.yaml by fewer keys than a meta.yaml, whose top level counts for each job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.convert.facts import Facts
    from kiln.model.build_config import BuildConfig

    Matrix = tuple[Sequence[BuildConfig], Mapping[str, Sequence[Facts]]]

    Packages = dict[tuple[str, str, str], tuple[str, str]]  # by what they are: config and name

_MISSING = "nothing"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that differs: of which package, what it is, both sides as text, and the configs in which it does."""

    package: str
    what: str
    old: str
    new: str
    configs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HashCorrection:
    """Keys that a package has to count in its hash, or not to, so that its builds differ exactly where they did."""

    use: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ignore: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(self.use.values()) or any(self.ignore.values())

    def __or__(self, other: HashCorrection) -> HashCorrection:
        return HashCorrection(use=_joined(self.use, other.use), ignore=_joined(self.ignore, other.ignore))


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The result of a comparison: it holds when there are no differences and no keys are needed.

    ``equal_hashes`` are the packages whose build strings are equal with their hashes. ``notes`` say what the formats do
    differently for packages that are equal otherwise.
    """

    configs: int
    packages: int
    equal_hashes: int
    differences: tuple[Difference, ...]
    needed: HashCorrection
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if both recipes render to the same packages."""
        return not self.differences and not self.needed


Pairs = dict[str, list[tuple["Facts", "Facts"]]]  # by config


def compare_packages(old: Mapping[str, Sequence[Facts]], new: Mapping[str, Sequence[Facts]]) -> Proof:
    """Return the comparison of all packages, by config."""
    collected: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    pairs: Pairs = {}
    for config, packages in old.items():
        pairs[config] = list(_paired(packages, new[config]))
        missing = _unpaired(packages, new[config])
        if missing:
            collected[missing].append(config)
        for one, other in pairs[config]:
            for what, before, after in _differences(one, other):
                collected[one.name, what, before, after].append(config)
    every = [pair for result in pairs.values() for pair in result]
    return Proof(
        configs=len(old),
        packages=sum(map(len, old.values())),
        equal_hashes=sum(one.build_string == other.build_string for one, other in every),
        differences=tuple(
            Difference(package=name, what=what, old=before, new=after, configs=tuple(configs))
            for (name, what, before, after), configs in collected.items()
        ),
        needed=_needed(every) | _split_inside(old, new),
        notes=tuple(_notes(every)),
    )


def _identity(package: Facts) -> tuple[str, str]:
    return package.name, package.masked


def _paired(old: Sequence[Facts], new: Sequence[Facts]) -> Iterator[tuple[Facts, Facts]]:
    """Pair the packages of a config, those of one name in the order of their build strings and hash inputs."""
    groups: dict[str, list[Facts]] = defaultdict(list)
    for package in sorted(new, key=_order):
        groups[package.name].append(package)
    for package in sorted(old, key=_order):
        if groups[package.name]:
            yield package, groups[package.name].pop(0)


def _order(package: Facts) -> tuple[str, str, list[tuple[str, str]]]:
    return (*_identity(package), sorted(package.hashed.items()))


def _unpaired(old: Sequence[Facts], new: Sequence[Facts]) -> tuple[str, str, str, str] | None:
    one, other = (", ".join(sorted(package.name for package in packages)) for packages in (old, new))
    return None if one == other else ("all packages", "names", one or _MISSING, other or _MISSING)


def _differences(old: Facts, new: Facts) -> Iterator[tuple[str, str, str]]:
    if old.masked != new.masked and old.masked != new.masked.replace("h#", "", 1).lstrip("_"):
        yield "build string", old.masked, new.masked
    for what in sorted(old.values.keys() | new.values.keys()):
        before, after = old.values.get(what), new.values.get(what)
        if before != after:
            yield what, *_shown(before, after)


def _shown(before: Any, after: Any) -> tuple[str, str]:
    """Return both sides as text: of lists, what only one of them has."""
    if isinstance(before, tuple) and isinstance(after, tuple) and sorted(map(str, before)) != sorted(map(str, after)):
        return _text(_less(before, after)), _text(_less(after, before))
    return _text(before), _text(after)


def _less(items: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    rest, result = list(others), []
    for item in items:
        if item in rest:
            rest.remove(item)
        else:
            result.append(item)
    return tuple(result)


def _text(value: Any) -> str:
    if value in (None, (), ""):
        return _MISSING
    return " | ".join(map(str, value)) if isinstance(value, tuple) else str(value)


# Hashes


def _needed(pairs: Iterable[tuple[Facts, Facts]]) -> HashCorrection:
    """Return the keys that make new packages differ exactly where the old ones do, and that scripts read."""
    groups: dict[tuple[str, str, str], list[tuple[Facts, Facts]]] = defaultdict(list)
    for old, new in pairs:
        groups[old.name, str(old.values.get("package/version")), str(old.values.get("subdir"))].append((old, new))
    needed = HashCorrection()
    for (name, _, _), group in groups.items():
        read = frozenset(key for old, new in group for key in old.script_keys if key not in new.hash_input)
        split, merged = _changed(group)
        needed |= HashCorrection(use={name: read | merged}, ignore={name: split})
    return needed


def _split_inside(old: Mapping[str, Sequence[Facts]], new: Mapping[str, Sequence[Facts]]) -> HashCorrection:
    """Return the keys that make several builds of a package in one config where there was one."""
    ignore: dict[str, frozenset[str]] = {}
    for config, packages in new.items():
        before = Counter(map(_identity, old[config]))
        groups: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
        for package in packages:
            name, masked = _identity(package)
            groups[name, masked if before[name, masked] else ""].append(package.hash_input)
        for (name, masked), inputs in groups.items():
            if len(inputs) > max(before[name, masked], 1):
                ignore[name] = ignore.get(name, frozenset()) | _varying(inputs)
    return HashCorrection(ignore=ignore)


def _changed(group: Sequence[tuple[Facts, Facts]]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys that split builds which were one, and those whose lack merges builds which were several."""
    split: set[str] = set()
    merged: set[str] = set()
    for keep, other in ((0, 1), (1, 0)):
        classes: dict[str, list[tuple[Facts, Facts]]] = defaultdict(list)
        for pair in group:
            classes[pair[keep].build_string].append(pair)
        for same in classes.values():
            if len({pair[other].build_string for pair in same}) > 1:
                (split if other else merged).update(_varying([pair[other].hash_input for pair in same]))
    return frozenset(split), frozenset(merged)


def _varying(inputs: Sequence[Mapping[str, str]]) -> set[str]:
    keys = {key for setting in inputs for key in setting}
    return {key for key in keys if len({setting.get(key) for setting in inputs}) > 1}


def _joined(one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    joined = {key: one.get(key, frozenset()) | other.get(key, frozenset()) for key in (*one, *other)}
    return {key: values for key, values in joined.items() if values}


# Notes


def _notes(pairs: Sequence[tuple[Facts, Facts]]) -> Iterator[str]:
    names = sorted({old.name for old, new in pairs if old.build_string != new.build_string})
    if names:
        yield f"build strings of {', '.join(names)} differ in the hash alone"
    changes: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for old, new in pairs:
        added, gone = changes[old.name]
        added |= new.hashed.keys() - old.hashed.keys()
        gone |= old.hashed.keys() - new.hashed.keys()
    for name, (added, gone) in sorted(changes.items()):
        parts = [f"{', '.join(sorted(keys))} {word}" for keys, word in ((added, "added"), (gone, "left out")) if keys]
        if parts:
            yield f"keys in the hash of {name}: {'; '.join(parts)}"
    bound = sorted({old.name for old, _ in pairs if old.bound_python})
    if bound:
        yield (
            f"the bound of python in run of {', '.join(bound)} was conda-build's (pin_run_as_build), "
            "and is now that of python's run exports"
        )


def compare_matrices(proof: Proof, old: Matrix, new: Matrix) -> Proof:
    """Return a proof with the comparison of all packages of both matrices, each at its own configs."""
    before, after = _packages(old), _packages(new)
    if before.keys() == after.keys():
        note = f"the same packages come from {len(new[0])} configs instead of {len(old[0])}: kiln rerender"
        return replace(proof, notes=(*proof.notes, note))
    gone = [place for key, place in before.items() if key not in after]
    added = [place for key, place in after.items() if key not in before]
    matrix = Difference(
        package="all packages",
        what="packages of all configs",
        old=_shown_places(gone),
        new=_shown_places(added),
        configs=tuple(dict.fromkeys(config for config, _ in gone)),
    )
    return replace(proof, differences=(*proof.differences, matrix))


def _packages(matrix: Matrix) -> Packages:
    configs, facts = matrix
    return {
        (config.platform, package.masked, f"{package.name} {sorted(package.values.items())}"): (
            config.name,
            package.name,
        )
        for config in configs
        for package in facts[config.name]
    }


def _shown_places(places: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({config})" for config, name in places) or "nothing"
