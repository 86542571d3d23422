"""Feedstocks made to exhaust whoever reads them: those once seen to do so, and more of their families by number."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests import builders
from tests.builders import LINUX_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

HEAD = "package:\n  name: app\n  version: 1\n"
USES_ALPHA = HEAD + "requirements:\n  host:\n    - alpha\n    - python\n"
CONFIG = "linux_64_"
VARIED = "".join(f"{index:04}" for index in range(1_000))  # a text whose parts are nearly all different
GROWN = "{% set ns = namespace(a=[1]) %}{% for i in range(4) %}{% set ns.a = [ns.a] * 1000 %}{% endfor %}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """A feedstock's files, and the family that it is one of."""

    family: str
    meta: str = HEAD
    variants: str = ""
    forge: str = LINUX_ONLY
    files: tuple[tuple[str, str], ...] = ()

    def write(self, folder: Path) -> Feedstock:
        """Write the feedstock, with a config's file for ``kiln render``."""
        config = (f".ci_support/{CONFIG}.yaml", "target_platform:\n- linux-64\n")
        return builders.feedstock(folder, self.meta, self.variants, self.forge, dict([config, *self.files]))


def template(family: str, body: str) -> Hostile:
    """Return a recipe with a template in its fifth line."""
    return Hostile(family=family, meta=f"{HEAD}about:\n  summary: {body}\n")


def selector(expression: str) -> Hostile:
    """Return a recipe with a selector in its fifth line."""
    return Hostile(family="selector", meta=f"{HEAD}build:\n  number: 1  # [{expression}]\n")


def values(key: str, count: int) -> str:
    """Return a key of a variant file with many values."""
    return f"{key}:\n" + "".join(f"  - {index}\n" for index in range(count))


# By what was seen to take gigabytes, or minutes, or to never end.
NAMED: dict[str, Hostile] = {
    "nested, printed": template("nested", GROWN + "{{ ns.a }}"),
    "nested, as text": template("nested", GROWN + "{{ ns.a|string }}"),
    "nested, as JSON": template("nested", GROWN + "{{ ns.a|tojson }}"),
    "nested, pretty": template("nested", GROWN + "{{ ns.a|pprint }}"),
    "nested, joined": template("nested", GROWN + "{{ ns.a ~ '' }}"),
    "nested, compared": template("nested", GROWN + "{% set b = ns.a %}" + GROWN + "{{ b == ns.a }}"),
    "nested, hashed": template("nested", GROWN.replace("[", "(").replace("]", ",)") + "{{ {ns.a: 1} }}"),
    "join": template("growth", "{{ ','.join(['a'*1000000]*5000) }}"),
    "replace": template("growth", "{{ ('a'*1000000).replace('a', 'b'*10000) }}"),
    "translate": template("growth", "{{ ('a'*1000000).translate({97: 'b'*10000}) }}"),
    "expandtabs": template("growth", "{{ ('\\t'*1000000).expandtabs(10000) }}"),
    "indent": template("growth", "{{ ('\\n'*1000000)|indent(10000, true, true) }}"),
    "format": template("growth", "{{ ('{0}'*10000).format('a'*1000000) }}"),
    "percent": template("growth", "{{ ('%(a)s'*10000) % {'a': 'a'*1000000} }}"),
    "a wide number": template("growth", "{{ '%1000000000d' % 3 }}"),
    "a wide text": template("growth", "{{ 'x'.ljust(10**10) }}"),
    "a doubled text": template(
        "growth",
        "{% set n = namespace(s='aaaa') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    ),
    "a long number": template("number", "{{ ('ff'*400000)|int(0, 16) }}"),
    "a power": template("number", "{{ 7 ** 100000000 }}"),
    "a range": template("loop", "{{ range(10**12)|list }}"),
    "a slow pattern": template("pattern", "{{ load_file_regex('meta.yaml', '(a+)+$', True) }}  # " + "a" * 50 + "!"),
    "a selector that grows": selector(f"len('{'b' * 50}'" + f".replace('b', '{'b' * 50}')" * 8 + ") > 1"),
    "a long value": Hostile(family="values", meta=USES_ALPHA, variants=f"alpha:\n  - {VARIED}\n  - b\n"),
    "a long list": Hostile(family="yaml", meta=f"{HEAD}extra:\n  x:\n" + "    - a\n" * 1_900_000),
    "many templates": Hostile(
        family="lexer", meta=f"{HEAD}extra:\n" + "".join(f"  x{i}: {{{{ {i} }}}}\n" for i in range(20_000))
    ),
    "never closed": Hostile(family="lexer", meta=HEAD + "{{ \n" * 20_000),
    "8,000 values": Hostile(family="values", meta=USES_ALPHA, variants=values("alpha", 8_000)),
    "200,000 values": Hostile(family="values", meta=USES_ALPHA, variants=values("alpha", 200_000)),
    "aliases of a long text": Hostile(
        family="yaml", meta=f'{HEAD}extra:\n  x: &a "{"y" * 9_000}"\ntest:\n  commands:\n' + "    - *a\n" * 150_000
    ),
}


def numbered(number: int) -> Hostile:
    """Return one of an endless row of hostile feedstocks: the named ones first, then the families in turn."""
    if number < len(NAMED):
        return list(NAMED.values())[number]
    return FAMILIES[number % len(FAMILIES)](random.Random(number))


def big(dice: random.Random) -> int:
    """Return a number of one to a hundred millions, small ones as often as large ones."""
    return int(10 ** dice.uniform(3, 9))


def growth(dice: random.Random) -> Hostile:
    """Return a text or list that one call makes enormous."""
    n, m = big(dice), big(dice)
    text = dice.choice((f"('a'*{n})", f"('\\n'*{n})", f"('\\t '*{n})", f"('<a> '*{n})", f"('http://a.b '*{n})"))
    listed = dice.choice((f"['a'*{n % 10**6}]*{m}", f"range({n})|list", f"{text}|list", f"[[1]*{n}]*{m}"))
    operation = dice.choice(
        (
            "{t}.replace('a', 'b'*{m})", "{t}.translate({{97: 'b'*{m}}})", "{t}.expandtabs({m})", "{t}.center({m})",
            "{t}|indent({m}, true, true)", "{t}|wordwrap(1)", "{t}|wordwrap({m})", "{t}|urlize", "{t}|forceescape",
            "{t}|tojson|tojson|tojson", "{t}|title|wordcount", "{t}|striptags", "{t}|center({m})", "{t}.zfill({m})",
            "('%' ~ {m} ~ 'd') % 1", "'%*d' % ({m}, 1)", "('{{:' ~ {m} ~ '}}').format(1)", "{t}|format({m})",
            "','.join({l})", "({l})|join({t})", "({l})|batch({m}, 0)|list", "({l})|slice({m})|list", "({l})|pprint",
            "({l})|unique|list|length", "({l})|sort|join", "({l})|string|length", "{{'a': {t}}}|xmlattr",
            "{t} ~ {t} ~ {t}", "({l}) + ({l}) + ({l})", "{t}.split('a')|length", "{t}.encode().hex()", "({l})|sum",
            "({l})|tojson", "{t}|urlencode", "{t}|replace('a', {t})", "{t}|reverse|list", "{t}.splitlines()|length",
        )
    )  # fmt: skip
    return template("growth", "{{ " + operation.format(t=text, l=listed, m=m) + " }}")


def nested(dice: random.Random) -> Hostile:
    """Lists in lists, of which little memory holds endless work."""
    deep, wide = dice.randint(3, 200), dice.choice((2, 10, 1000))
    start, step = dice.choice((("[1]", "[ns.a] * {w}"), ("(1,)", "(ns.a,) * {w}"), ("{}", "{{1: ns.a, 2: ns.a}}")))
    use = dice.choice(
        ("ns.a", "ns.a|string|length", "ns.a|tojson", "ns.a|pprint", "ns.a ~ ''", "ns.a == ns.a[:]", "ns.a in [[ns.a]]",
         "{ns.a: 1}", "[ns.a, ns.a]|unique|list", "[ns.a, ns.a]|sort", "'%s' % (ns.a,)", "'{}'.format(ns.a)",
         "[[ns.a], [ns.a]]|max", "ns.a|length ~ ns.a|first|string", "[ns.a]|groupby(0)")
    )  # fmt: skip
    grow = f"{{% for i in range({deep}) %}}{{% set ns.a = {step.format(w=wide)} %}}{{% endfor %}}"
    return template("nested", f"{{% set ns = namespace(a={start}) %}}{grow}{{{{ {use} }}}}")


def loops(dice: random.Random) -> Hostile:
    """Loops and recursion that come to no end."""
    n, deep = big(dice), dice.randrange(200)
    twice = "{{ f(n-1) }}{{ f(n-1) }}"
    body = dice.choice(
        (
            f"{{% for i in range({n}) %}}{{% for j in range({n}) %}}{{{{ i }}}}{{% endfor %}}{{% endfor %}}",
            "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
            f"{{% macro f(n) %}}{{% if n %}}{twice}{{% endif %}}{{% endmacro %}}{{{{ f({deep}) }}}}",
            "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{% call f() %}x{% endcall %}",
            "{% include 'meta.yaml' %}",
            "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
            f"{{% for i in range({n}) %}}{{% set a = 'b' * 100000 %}}{{{{ a }}}}{{% endfor %}}",
            f"{{{{ range({n})|map('string')|list|length }}}}",
            f"{{{{ range({n})|select('odd')|map('pprint')|join }}}}",
            f"{{{{ range({n})|map('float')|sort|reverse|list|length }}}}",
            f"{{{{ range({n})|sum }}}}",
            f"{{{{ range({n})|groupby('real')|list|length }}}}",
            f"{{{{ {n} in range({n}) and (range({n})|last) }}}}",
            f"{{% set ns = namespace(a='a') %}}{{% for i in range({n}) %}}{{% set ns.a = ns.a ~ ns.a %}}{{% endfor %}}",
            f"{{% set c = cycler(1, 2) %}}{{% for i in range({n}) %}}{{{{ c.next() }}}}{{% endfor %}}",
            f"{{% filter upper %}}{{% for i in range({n}) %}}{'x' * 4000}{{% endfor %}}{{% endfilter %}}",
        )
    )
    return template("loop", body)


def numbers(dice: random.Random) -> Hostile:
    """Numbers of very many digits."""
    n, m = big(dice), big(dice)
    operation = dice.choice(
        ("7 ** {n}", "(7 ** {k}) ** {k}", "7 ** {n} % 2", "('ff'*{k})|int(0, 16)", "('9'*{k})|int", "(2 ** {n})|string",
         "'%d' % 7 ** {k}", "'{{:x}}'.format(7 ** {n})", "1|round({m})", "1.5|round({k}, 'ceil')", "'%.{k}f' % 1.5",
         "'%{k}.{k}f' % 1.5", "(7 ** {k}) * (7 ** {k})", "(7 ** {n}) // 3", "('1' * {n})|float", "1e308 * 10 ** {k}",
         "(7 ** {n}).bit_length()", "{n}|filesizeformat", "(7 ** {k})|abs|tojson", "7 ** {k} == 7 ** {k} + 1")
    )  # fmt: skip
    return template("number", "{{ " + operation.format(n=n, m=m, k=n % 10**6) + " }}")


def patterns(dice: random.Random) -> Hostile:
    """Patterns that try every way through a text, and data that is read from it."""
    length = dice.choice((30, 300, 3000))
    pattern = dice.choice(
        ("(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*x", "a*a*a*a*a*a*a*a*a*a*a*[0-9]", "(a?){99}a{99}", "(?:a*)*b")
    )
    reading = f"{{{{ load_file_regex('data.txt', '{pattern}', True) }}}}"
    deep = "[" * big(dice) if dice.random() < 0.3 else "a" * length + "!"
    fmt = dice.choice(("json", "yaml", "toml"))
    body = reading if dice.random() < 0.7 else f"{{{{ load_file_data('data.txt', '{fmt}', from_recipe_dir=True) }}}}"
    hostile = template("pattern", body)
    return Hostile(family="pattern", meta=hostile.meta, files=(("recipe/data.txt", deep[:10_000_000]),))


def selectors(dice: random.Random) -> Hostile:
    """Selectors that grow, nest or repeat."""
    n = dice.randint(2, 60)
    expression = dice.choice(
        (
            lambda: f"len('{'b' * n}'" + f".replace('b', '{'b' * n}')" * dice.randint(2, 30) + ") > 1",
            lambda: "(" * n * 20 + "win" + ")" * n * 20,
            lambda: "not " * n * 8 + "win",
            lambda: " or ".join(["win"] * n * 5),
            lambda: f"','.join(['{'b' * n}'] + [str({'9' * n * 10})] ) == ''",
            lambda: f"{'9' * n * 25} == {'9' * n * 25}",
            lambda: "[" * n + "]" * n,
            lambda: f"'{'a,' * n * 10}'.split(',') == list(str({n}))",
            lambda: "-" * n * 20 + "1",
            lambda: "win if " * n + "1" + " else 2" * n,
            lambda: f"environ.get('{'x' * n * 20}', '') == {'(1,)' + '+(1,)' * n * 5}",
        )
    )()
    lines = dice.choice((1, 1, 100, 20_000))
    body = "".join(
        f"  x{line}: 1  # [{expression} or py == {line}]\n" for line in range(min(lines, 10**7 // len(expression)))
    )
    return Hostile(family="selector", meta=f"{HEAD}extra:\n{body}")


def yamls(dice: random.Random) -> Hostile:
    """YAML that expands, nests, merges or goes on."""
    n = min(big(dice), 400_000)
    text = "y" * dice.randint(1, 9_000)
    laughs = "".join(
        f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) or 'lol'}]\n" for i in range(1, dice.randint(5, 30))
    )
    merged = "".join(f"  c{i}:\n    <<: [*m, *m, *m]\n" for i in range(n // 20))
    outputs = "".join(f"  - name: o{i}\n    requirements:\n      run:\n        - dep{i}\n" for i in range(n // 40))
    body = dice.choice(
        (
            lambda: f"extra:\n  a0: &a0 [lol]\n{laughs}",
            lambda: f'extra:\n  x: &a "{text}"\ntest:\n  commands:\n' + "    - *a\n" * (n // 2),
            lambda: "extra: " + "[" * n + "]" * n + "\n",
            lambda: "extra: " + "{a: " * n + "}" * n + "\n",
            lambda: "extra:\n" + "".join(f"{' ' * (i + 2)}a:\n" for i in range(min(n, 3_000))),
            lambda: "extra:\n  x:\n" + "    - a\n" * n,
            lambda: "extra:\n" + "".join(f"  k{i}: v\n" for i in range(n)),
            lambda: "extra:\n  a: &m {" + ", ".join(f"k{i}: 1" for i in range(600)) + "}\n" + merged,
            lambda: "extra:\n  x: >\n" + "    folded\n" * n,
            lambda: "requirements:\n  run:\n" + "".join(f"    - dep{i} >=1,<2\n" for i in range(n // 4)),
            lambda: "outputs:\n" + outputs,
            lambda: "source:\n" + "".join(f"  - url: http://a.b/{i}\n" for i in range(n // 4)),
            lambda: "about:\n  summary: " + "w " * min(n, 4_000) + "\n",
            lambda: "about:\n  summary: |\n" + ("    " + "w" * 9_000 + "\n") * (n // 400),
            lambda: "extra:\n  ? " + "k" * 5_000 + "\n  : 1\n" + "# comment\n" * n,
            lambda: "%YAML 1.1\n---\n" * dice.randint(1, 20_000),
        )
    )()  # fmt: skip
    return Hostile(family="yaml", meta=HEAD + body)


def lexers(dice: random.Random) -> Hostile:
    """Marks of Jinja without number, or without end."""
    n = min(big(dice), 100_000)
    body = dice.choice(
        (
            lambda: "{{ \n" * n,
            lambda: "{# \n" * n,
            lambda: "{% \n" * n,
            lambda: "{{ '\n" * n,
            lambda: "{% if a %}\n" * n,
            lambda: "{% raw %}\n" + "{{ x\n" * n,
            lambda: "{% if a %}\n" * n + "{% endif %}\n" * n,
            lambda: "{% for i in [1] %}\n" * (n % 60) + "{% endfor %}\n" * (n % 60),
            lambda: "".join(f"x{i}: {{{{ {i} }}}}\n" for i in range(n // 4)),
            lambda: "{{ [" + "1, " * (n // 40) + "] }}\n",
            lambda: "{% set a = {\n" + "'k': 1,\n" * (n // 20) + "} %}\nabout:\n  summary: {{ a.k }}\n",
            lambda: "{{ " + " + ".join(["'a'"] * (n // 20)) + " }}\n",
            lambda: "{{ a" + ".b" * (n // 20) + " }}\n",
            lambda: "{{ a" + "|upper" * (n // 20) + " }}\n",
            lambda: "{{ " + "not " * (n // 20) + "a }}\n",
            lambda: "{##" * min(n, 3_000),
            lambda: "".join(f"{{% set v{i} = v{i - 1} ~ v{i - 1} %}}\n" for i in range(1, n // 20)),
            lambda: "{{ '" + "\\\\" * 999,
        )
    )()
    return Hostile(family="lexer", meta=HEAD + body)


def variants(dice: random.Random) -> Hostile:
    """Variant files with too much of something: values, keys, groups, pins, selectors, migrations, letters."""
    n = min(big(dice), 200_000)
    group = "zip_keys:\n  -\n    - alpha\n    - beta\n"
    value = dice.choice(
        (
            lambda: values("alpha", n),
            lambda: values("python", n),
            lambda: group + values("alpha", n) + values("beta", n),
            lambda: values("alpha", n // 100) + values("python", n // 100),
            lambda: "".join(values(f"k{i}", 3) for i in range(n // 20)),
            lambda: "zip_keys:\n" + "".join(f"  - [a{i}, b{i}]\n" for i in range(n // 20)),
            lambda: "pin_run_as_build:\n" + "".join(f"  p{i}:\n    max_pin: {'x.' * 50}x\n" for i in range(n // 20)),
            lambda: f"alpha:\n  - {VARIED[:n]}\n  - b\n  - {VARIED[:5]}\n",
            lambda: "alpha:\n" + "".join(f"  - {'a' * i}\n" for i in range(min(n // 100, 2_000))),
            lambda: "alpha:\n" + "".join(f"  - {i}  # [linux and '{i}' in '{'a' * 90}']\n" for i in range(n)),
            lambda: f"{'k' * min(n, 9_000)}:\n  - 1\n",
            lambda: "alpha: " + "{a: " * (n // 100) + "}" * (n // 100) + "\n",
            lambda: "alpha:\n  - &a [b]\n" + "  - *a\n" * n,
            lambda: f"python:\n  - 3.{'9' * min(n, 9_000)}\n",
            lambda: f"target_platform:\n  - linux-64\n{values('alpha', n // 10)}extend_keys:\n  - alpha\n",
        )
    )()
    migrator = "__migrator:\n  kind: version\n  migration_number: 1\nmigrator_ts: 1\n" + values("alpha", n // 4)
    migrations = ((".ci_support/migrations/m.yaml", migrator),) if dice.random() < 0.3 else ()
    uses = "".join(f"    - {key}\n" for key in ("beta", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "p1"))
    return Hostile(family="variants", meta=USES_ALPHA + uses, variants=value, files=migrations)


def settings(dice: random.Random) -> Hostile:
    """Return a conda-forge.yml, a config's file or a build script with too much in it."""
    n = min(big(dice), 400_000)
    forge = dice.choice(
        (
            lambda: LINUX_ONLY + "os_version:\n" + "".join(f"  p{i}: x\n" for i in range(n)),
            lambda: LINUX_ONLY + "build_platform:\n" + "".join(f"  linux_{i}: linux_64\n" for i in range(n // 20)),
            lambda: LINUX_ONLY + "x: " + "[" * n,
            lambda: LINUX_ONLY + "noarch_platforms:\n" + "  - linux_64\n" * n,
        )
    )()
    script = dice.choice(
        (lambda: "$" * n, lambda: "${python " * (n // 9), lambda: "%python%" * (n // 9), lambda: "$a\n" * n)
    )()
    config = dice.choice(
        (
            lambda: values("alpha", n),
            lambda: "target_platform:\n- linux-64\n" + "".join(f"k{i}:\n- v\n" for i in range(n // 20)),
        )
    )()
    files = (
        ("recipe/build.sh", script),
        (".ci_support/linux_64_.yaml", config),
        (".ci_support/x.yaml", "alpha:\n" + "- a\n" * n),
    )
    return Hostile(family="settings", forge=forge if dice.random() < 0.5 else LINUX_ONLY, files=files)


FAMILIES: tuple[Callable[[random.Random], Hostile], ...] = (
    growth, growth, nested, loops, numbers, patterns, selectors, yamls, lexers, variants, variants, settings,
)  # fmt: skip
