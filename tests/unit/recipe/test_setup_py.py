"""A setup.py is read without running it; values that only a run would give are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln import expand, render
from kiln.errors import TemplateFault
from kiln.recipe.setup_py import setup_data
from kiln.template.names import Os
from tests.feedstocks import written

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"VERSION": " 1.5\n", "sub/VERSION": "9\n", "README": "words"}


def data(text: str | None, configured: str | None = None, name: str = "setup.py") -> Any:
    files = {**FILES, name: text, "setup.cfg": configured}
    return setup_data(name, files.get, Os({"CONDA_BUILD": "1", "PKG_VERSION": "2.0"}))


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
    ],
)
def test_a_version_that_needs_code_is_refused(text: str) -> None:
    for read in (lambda: data(text)["version"], lambda: data(text).get("version"), lambda: dict(data(text).items())):
        with pytest.raises(TemplateFault, match="which only running that file would give") as caught:
            read()
        assert "kiln runs no code while rendering" in caught.value.why


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
    feedstock = written(tmp_path, meta, files=files)
    (config,) = expand.configs(feedstock)
    (output,) = render.render(feedstock, config).outputs
    assert (output.name, output.version) == ("b", "3.1")


def test_a_setup_py_is_not_run(tmp_path: Path) -> None:
    package = "package:\n  name: a\n  version: {{ data['version'] }}\nsource:\n  path: .\n"
    meta = f"{{% set data = load_setup_py_data() %}}\n{package}"
    code = f"open({str(tmp_path / 'ran')!r}, 'w').write('x')\nsetup(version=get())\n"
    feedstock = written(tmp_path, meta, files={"recipe/setup.py": code})
    (config,) = expand.configs(feedstock)
    with pytest.raises(TemplateFault, match="'version' of setup") as caught:
        render.render(feedstock, config)
    assert caught.value.at is not None
    assert (caught.value.at.line, (tmp_path / "ran").exists()) == (4, False)
