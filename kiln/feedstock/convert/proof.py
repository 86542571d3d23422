"""The proof of a conversion: both recipes are rendered for every config, and their packages are compared.

Other configs are no difference as long as all of them together give the same packages: rattler-build and conda-smithy
divide a recipe.yaml by fewer keys than a meta.yaml, whose top level counts for each job.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kiln.feedstock.convert.composition import HashKeysToUseOrIgnore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.feedstock.convert.packages import ComparablePackage

    PackagePair = tuple[ComparablePackage, ComparablePackage]  # one of the old recipe, one of the new

    PackagesByConfig = Mapping[str, Sequence[ComparablePackage]]


_MISSING = "nothing"
# A default build string. conda-build's has NumPy's version only for a requirement such as 'numpy x.x', and Python's
# only where run requires it.
_DEFAULT = re.compile(r"(?:np\d+)?(py\d+)?h#_\d+")
_STRING = "h${{ hash }}_${{ build_number }}"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that differs: of which package, what it is, both sides as text, and the configs in which it does."""

    package: str
    what: str
    old: str
    new: str
    configs: tuple[str, ...]


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
    needed: HashKeysToUseOrIgnore
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if both recipes render to the same packages."""
        return not self.differences and not self.needed


def compare_packages(old: PackagesByConfig, new: PackagesByConfig) -> Proof:
    """Return the comparison of all packages, by config."""
    collected: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    pairs: list[PackagePair] = []
    for config, packages in old.items():
        paired = list(_package_pairs(packages, new[config]))
        pairs += paired
        missing = _name_difference(packages, new[config])
        if missing:
            collected[missing].append(config)
        for one, other in paired:
            for what, before, after in _package_differences(one, other):
                collected[one.name, what, before, after].append(config)
    return Proof(
        configs=len(old),
        packages=sum(map(len, old.values())),
        equal_hashes=sum(one.build_string == other.build_string for one, other in pairs),
        differences=tuple(
            Difference(package=name, what=what, old=before, new=after, configs=tuple(configs))
            for (name, what, before, after), configs in collected.items()
        ),
        needed=_needed_hash_keys(pairs) | _keys_splitting_builds_within_config(old, new),
        notes=tuple(_notes_on_format_differences(pairs)),
    )


def _name_and_masked_build(package: ComparablePackage) -> tuple[str, str]:
    return package.name, package.masked_build_string


def _package_pairs(old: Sequence[ComparablePackage], new: Sequence[ComparablePackage]) -> Iterator[PackagePair]:
    """Pair the packages of a config, those of one name in the order of their build strings and hash inputs."""
    groups: dict[str, list[ComparablePackage]] = defaultdict(list)
    for package in sorted(new, key=_pairing_sort_key):
        groups[package.name].append(package)
    for package in sorted(old, key=_pairing_sort_key):
        if groups[package.name]:
            yield package, groups[package.name].pop(0)


def _pairing_sort_key(package: ComparablePackage) -> tuple[str, str, list[tuple[str, str]]]:
    return (*_name_and_masked_build(package), sorted(package.comparable_hash_input.items()))


def _name_difference(
    old: Sequence[ComparablePackage], new: Sequence[ComparablePackage]
) -> tuple[str, str, str, str] | None:
    one, other = (", ".join(sorted(package.name for package in packages)) for packages in (old, new))
    return None if one == other else ("all packages", "names", one or _MISSING, other or _MISSING)


def _package_differences(old: ComparablePackage, new: ComparablePackage) -> Iterator[tuple[str, str, str]]:
    if (
        old.masked_build_string != new.masked_build_string
        and old.masked_build_string != new.masked_build_string.replace("h#", "", 1).lstrip("_")
    ):
        yield "build string", old.masked_build_string, new.masked_build_string
    for what in sorted(old.values.keys() | new.values.keys()):
        before, after = old.values.get(what), new.values.get(what)
        if before != after:
            yield what, *_old_and_new_as_text(before, after)


def _old_and_new_as_text(before: Any, after: Any) -> tuple[str, str]:
    """Return both sides as text: of lists, what only one of them has."""
    if isinstance(before, tuple) and isinstance(after, tuple) and sorted(map(str, before)) != sorted(map(str, after)):
        return _value_as_text(_items_only_in_first(before, after)), _value_as_text(_items_only_in_first(after, before))
    return _value_as_text(before), _value_as_text(after)


def _items_only_in_first(items: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    rest, result = list(others), []
    for item in items:
        if item in rest:
            rest.remove(item)
        else:
            result.append(item)
    return tuple(result)


def _value_as_text(value: Any) -> str:
    if value in (None, (), ""):
        return _MISSING
    return " | ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _needed_hash_keys(pairs: Iterable[PackagePair]) -> HashKeysToUseOrIgnore:
    """Return the keys that make new packages differ exactly where the old ones do, and that scripts read."""
    groups: dict[tuple[str, str, str], list[PackagePair]] = defaultdict(list)
    for old, new in pairs:
        groups[old.name, str(old.values.get("package/version")), str(old.values.get("subdir"))].append((old, new))
    needed = HashKeysToUseOrIgnore()
    for (name, _, _), group in groups.items():
        read = frozenset(key for old, new in group for key in old.script_keys if key not in new.hash_input)
        split, merged = _keys_splitting_or_merging_builds(group)
        strings = frozenset(filter(None, (_build_string_setting(old, new) for old, new in group)))
        needed |= HashKeysToUseOrIgnore(use={name: read | merged}, ignore={name: split}, strings={name: strings})
    return needed


def _build_string_setting(old: ComparablePackage, new: ComparablePackage) -> str:
    """Return the setting of an old default build string where the new one has more versions; else nothing."""
    before, after = (_DEFAULT.fullmatch(package.masked_build_string) for package in (old, new))
    if not (before and after) or before[0] == after[0] or before[1] not in {None, after[1]}:
        return ""
    return f"py${{{{ python | version_to_buildstring }}}}{_STRING}" if before[1] else _STRING


def _keys_splitting_builds_within_config(old: PackagesByConfig, new: PackagesByConfig) -> HashKeysToUseOrIgnore:
    """Return the keys that make several builds of a package in one config where there was one."""
    ignore: dict[str, frozenset[str]] = {}
    for config, packages in new.items():
        before = Counter(map(_name_and_masked_build, old[config]))
        groups: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
        for package in packages:
            name, masked = _name_and_masked_build(package)
            groups[name, masked if before[name, masked] else ""].append(package.hash_input)
        for (name, masked), inputs in groups.items():
            if len(inputs) > max(before[name, masked], 1):
                ignore[name] = ignore.get(name, frozenset()) | _keys_with_differing_values(inputs)
    return HashKeysToUseOrIgnore(ignore=ignore)


def _keys_splitting_or_merging_builds(group: Sequence[PackagePair]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys that split builds which were one, and those whose lack merges builds which were several."""
    split: set[str] = set()
    merged: set[str] = set()
    for keep, other in ((0, 1), (1, 0)):
        classes: dict[str, list[PackagePair]] = defaultdict(list)
        for pair in group:
            classes[pair[keep].build_string].append(pair)
        for same in classes.values():
            if len({pair[other].build_string for pair in same}) > 1:
                (split if other else merged).update(
                    _keys_with_differing_values([pair[other].hash_input for pair in same])
                )
    return frozenset(split), frozenset(merged)


def _keys_with_differing_values(inputs: Sequence[Mapping[str, str]]) -> set[str]:
    keys = {key for setting in inputs for key in setting}
    return {key for key in keys if len({setting.get(key) for setting in inputs}) > 1}


def _notes_on_format_differences(pairs: Sequence[PackagePair]) -> Iterator[str]:
    names = sorted({old.name for old, new in pairs if old.build_string != new.build_string})
    if names:
        yield f"build strings of {', '.join(names)} differ in the hash alone"
    changes: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for old, new in pairs:
        added, gone = changes[old.name]
        added |= new.comparable_hash_input.keys() - old.comparable_hash_input.keys()
        gone |= old.comparable_hash_input.keys() - new.comparable_hash_input.keys()
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


def compare_matrices(proof: Proof, given: PackagesByConfig, expanded: PackagesByConfig) -> Proof:
    """Return a proof with the comparison of a recipe.yaml's builds at the given configs and at those it expands to."""
    before, after = _builds(given), _builds(expanded)
    lost, added = (sorted(one - other) for one, other in ((before, after), (after, before)))
    if not (lost or added):
        note = f"the same packages come from other configs, {len(expanded)} instead of {len(given)}: kiln rerender"
        return replace(proof, notes=(*proof.notes, note))
    matrix = Difference(
        package="all packages",
        what="builds after kiln rerender",
        old=f"{len(lost)} of {len(before)}: {', '.join(lost)}" if lost else _MISSING,
        new=f"{len(added)} of {len(after)}: {', '.join(added)}" if added else _MISSING,
        configs=(),
    )
    note = "a key divides a recipe.yaml into configs only where all packages use it, and a config has one image"
    return replace(proof, differences=(*proof.differences, matrix), notes=(*proof.notes, note))


def _builds(packages: PackagesByConfig) -> set[str]:
    """Return the builds; several configs may have the same."""
    return {
        f"{package.values.get('subdir')}/{package.name} {package.values.get('package/version')} {package.build_string}"
        for of_config in packages.values()
        for package in of_config
    }
