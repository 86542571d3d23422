"""A setup.py is read without running it; values that only a run would give are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import TemplateFault
from kiln.feedstock import matrix
from kiln.recipe import render
from kiln.recipe.template.names import RestrictedOs
from kiln.recipe.v0.setup_py import read_setup_data
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"VERSION": " 1.5\n", "sub/VERSION": "9\n", "README": "words"}


def data(text: str | None, configured: str | None = None, name: str = "setup.py") -> Any:
    files = {**FILES, name: text, "setup.cfg": configured}
    return read_setup_data(name, files.get, RestrictedOs({"CONDA_BUILD": "1", "PKG_VERSION": "2.0"}))


@pytest.mark.parametrize(
    "text",
    [
        "from setuptools import setup\nsetup(name='a', version='1.5')",
        "import setuptools\nVERSION = '1.5'\nsetuptools.setup(version=VERSION)",
        "V = 5\nmajor = 1\nsetup(version=get())\nsetup(version=f'{major}.{V}')",
        "V = '1.5'\ndef version():\n    '''It is.'''\n    return V\nsetup(version=version())",
        "with open('VERSION') as f:\n    version = f.read().strip()\nsetup(version=version)",
        "setup(version=open('VERSION').read().strip())",
        "import os\nd = os.path.dirname(__file__)\nsetup(version=open(os.path.join(d, 'VERSION')).read().strip())",
        "import io\nsetup(version=io.open('VERSION', encoding='utf-8').read().strip())",
        "import os\nif os.getenv('CONDA_BUILD') == '1':\n    v = '1.5'\nelse:\n    v = '2'\nsetup(version=v)",
        "if __name__ == '__main__':\n    setup(version='1.5')",
        "arguments = dict(version='1.5')\narguments = {'version': '1.5'}\nsetup(**arguments)",
        "import sys\nif sys.version_info < (3,):\n    sys.exit(1)\nsetup(version='1.5')",
        "import re\np = ['a', 'b']\nv = '1.5'\nprint(re.compile(v), p)\nsetup(version=v, packages=p)",
        "arguments = {'version': '1.5', 'packages': ['a']}\nsetup(**arguments)",
        "numbers = ['1', '5']\nversion = '.'.join(numbers)\nsetup(version=version)",
        "import os\nos.chdir(os.path.dirname(__file__))\nsetup(version=open('VERSION').read().strip())",
        "try:\n    from setuptools import setup\nexcept ImportError:\n    pass\nsetup(version='1.5')",
    ],
)
def test_a_version_that_follows_from_the_text_is_read(text: str) -> None:
    assert data(text)["version"] == "1.5"
    assert data(text).get("version") == "1.5"
    assert data(text).get("nothing", "default") == "default"


@pytest.mark.parametrize(
    "text",
    [
        "import versioneer\nsetup(version=versioneer.get_version())",
        "v = '1'\nfor i in range(9):\n    v = v + '.1'\nsetup(version=v)",
        "v = '1'\nexec(open('VERSION').read())\nsetup(version=v)",
        "v = '1'\nfrom a import *\nsetup(version=v)",
        "v = '1'\nfrom a import v\nsetup(version=v)",
        "v = '1'\ndef change():\n    global v\n    v = '2'\nchange()\nsetup(version=v)",
        "v = '1'\ntry:\n    v = read()\nexcept Exception:\n    pass\nsetup(version=v)",
        "v = {'version': '1'}\nv.update(read())\nsetup(**v)",
        "import sys\nif sys.version_info < (3,):\n    setup(version='1')\nelse:\n    setup(version='2')",
        "setup(version=open('../../VERSION').read())",
        "setup(version=open('/etc/passwd').read())",
        "import os\nsetup(version=os.popen('id').read())",
        "setup(version=().__class__.__base__.__subclasses__())",
        "def f():\n    return f()\nsetup(version=f())",
        "l = ['1']\nm = l\nm[0] = '2'\nsetup(version=l[0])",
        "l = ['1']\nk = l or m\nk[0] = '2'\nsetup(version=l[0])",
        "l = ['1']\nx = l.pop()\nl2 = l.append('2')\nsetup(version=l[0])",
        "l = ['1']\ndef f():\n    l[0] = '2'\nf()\nsetup(version=l[0])",
        "l = ['1']\ndef f(a):\n    a[0] = '2'\nx = f(l)\nsetup(version=l[0])",
        "d = {'a': ['1']}\nd['a'].append('2')\nsetup(version=d['a'][0])",
        "v = '1'\nlocals()['v'] = '2'\nsetup(version=v)",
        "v = '1'\nvars()['v'] = '2'\nsetup(version=v)",
        "v = '1'\nglobals()['v'] = '2'\nsetup(version=v)",
        "v = '1'\nx = globals().update(v='2')\nsetup(version=v)",
        "v = '1'\ndef f():\n    exec('v=2', globals())\nx = f()\nsetup(version=v)",
        "import sys\nv = '1'\nsys.modules[__name__].v = '2'\nsetup(version=v)",
        "v = '1'\ntry:\n    from a import v\nexcept ImportError:\n    pass\nsetup(version=v)",
        "v = '1'\nx = (v := '2')\nsetup(version=v)",
        "import os\nos.environ['A'] = '2'\nsetup(version=os.environ.get('A', '1'))",
        "import os\nos.chdir('sub')\nsetup(version=open('VERSION').read())",
        "open('VERSION', 'w').write('2')\nsetup(version=open('VERSION').read())",
        "with open('VERSION') as f:\n    f.readline()\n    v = f.read()\nsetup(version=v)",
        "def str(x):\n    return '2'\nv = str(1)\nsetup(version=v)",
        "def main():\n    setup(version='1')\nmain()",
        "setup(version='1')\ntry:\n    setup(version='2')\nexcept ValueError:\n    pass",
        "from setuptools import setup as run\nrun(version='1')",
        "def setup(**a):\n    run(**a, version='2')\nsetup(version='1')",
        "result = setup(version='1')",
        "from a import main\nmain()",
    ],
)
def test_a_version_that_needs_code_is_refused(text: str) -> None:
    for read in (lambda: data(text)["version"], lambda: data(text).get("version"), lambda: dict(data(text).items())):
        with pytest.raises(TemplateFault, match="which only running that file would give") as caught:
            read()
        assert "kiln runs no code while rendering" in caught.value.why


def test_no_view_of_unknown_arguments_is_given() -> None:
    partly = data("setup(name='a', version=get())")
    assert "version" in partly
    assert bool(partly)
    for text in ("setup(name='a', version=get())", "setup(**get())"):
        values = data(text)
        for view in (values.values(), values.keys(), values.items(), values):
            for use in (list, len, str):
                with pytest.raises(TemplateFault, match="which only running that file would give"):
                    use(view)
        with pytest.raises(TemplateFault, match="which only running that file would give"):
            values.copy()
    with pytest.raises(TemplateFault, match="which only running that file would give"):
        assert "version" in data("setup(**get())")
    whole = data("setup(name='a')")
    assert (list(whole.keys()), list(whole.values()), len(whole), "b" in whole) == (["name"], ["a"], 1, False)


def test_known_arguments_are_read_beside_unknown_ones() -> None:
    both = data("setup(name='a', version=get(), classifiers=['a', 'b'], zip_safe=False)")
    assert (both["name"], both["classifiers"], both["zip_safe"]) == ("a", ["a", "b"], False)
    assert dict(data("setup(name='a')").items()) == {"name": "a"}


def test_a_setup_cfg_counts_more_than_the_arguments() -> None:
    configured = """\
[metadata]
name = b
version = file: VERSION
summary = words
classifiers =
    one
    two
keywords = x, y
license_files = LICENSE
[options]
install_requires =
    six >=1
    numpy
zip_safe = yes
[options.extras_require]
test =
    pytest
[options.entry_points]
console_scripts =
    a = b:c
"""
    both = data("setup(name='a', version=get(), url='u')", configured)
    assert (both["name"], both["version"], both["description"], both["url"]) == ("b", "1.5", "words", "u")
    assert (both["classifiers"], both["keywords"]) == (["one", "two"], ["x", "y"])
    assert (both["install_requires"], both["zip_safe"]) == (["six >=1", "numpy"], True)
    assert (both["extras_require"], both["entry_points"]) == (
        {"test": ["pytest"]},
        {"console_scripts": ["a = b:c"]},
    )
    for text in ("[metadata]\nversion = attr: a.__version__\n", "[metadata]\nversion = file: nothing\n"):
        with pytest.raises(TemplateFault, match="'version' of setup"):
            data("setup(version='1')", text)["version"]


def test_without_a_file_there_is_no_data() -> None:
    assert dict(data(None).items()) == {}


@pytest.mark.parametrize("text", ["setup(", "x = " + "(" * 500 + ")" * 500, "setup(version='\0')"])
def test_malformed_python_is_refused(text: str) -> None:
    with pytest.raises(TemplateFault, match="malformed Python"):
        data(text)


def test_a_recipe_reads_the_setup_py_of_its_source_and_of_itself(tmp_path: Path) -> None:
    meta = """\
{% set data = load_setup_py_data(setup_file="sub/setup.py") %}
{% set own = load_setup_py_data(from_recipe_dir=True) %}
package:
  name: {{ own.get("name") }}
  version: {{ data["version"] }}
source:
  path: ../src
"""
    files = {
        "src/sub/setup.py": "setup(version=open('V').read())",
        "src/sub/V": "3.1",
        "recipe/setup.py": "setup(name='b')",
    }
    feedstock = builders.feedstock(tmp_path, meta, files=files)
    (config,) = matrix.configs(feedstock)
    (output,) = render.render(feedstock, config).outputs
    assert (output.name, output.version) == ("b", "3.1")


def test_a_setup_py_is_not_run(tmp_path: Path) -> None:
    package = "package:\n  name: a\n  version: {{ data['version'] }}\nsource:\n  path: .\n"
    meta = f"{{% set data = load_setup_py_data() %}}\n{package}"
    code = f"open({str(tmp_path / 'ran')!r}, 'w').write('x')\nsetup(version=get())\n"
    feedstock = builders.feedstock(tmp_path, meta, files={"recipe/setup.py": code})
    (config,) = matrix.configs(feedstock)
    with pytest.raises(TemplateFault, match="'version' of setup") as caught:
        render.render(feedstock, config)
    assert caught.value.at is not None
    assert (caught.value.at.line, (tmp_path / "ran").exists()) == (4, False)
