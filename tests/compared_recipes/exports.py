"""Requirements that export under every strength, in outputs that take and ignore them."""

from __future__ import annotations

# The packages "strengths" and "tools" export under each strength a package that names it.
EXPORTS = """\
package:
  name: exports
  version: "1"
outputs:
{outputs}
about:
  license: MIT
"""
ENVIRONMENTS = {
    "both": "",
    "generic": "      noarch: generic\n",
    "unnamed": "      ignore_run_exports:\n        - strengths-weak\n        - tools-strong-constrains\n",
    "unsourced": "      ignore_run_exports_from:\n        - tools\n",
    "unheard": "      ignore_run_exports_from:\n        - strengths\n",
}
REQUIRES = "      build:\n        - tools\n      host:\n        - strengths\n"
_OUTPUT = """\
  - name: {name}
    script: share.sh
    build:
      number: 0
{build}    requirements:
{requirements}"""
EXPORTS_OUTPUTS = {
    **{name: (build, REQUIRES) for name, build in ENVIRONMENTS.items()},
    "alone": ("      merge_build_host: true\n", "      build:\n        - strengths\n"),
    "only-build": ("", "      build:\n        - strengths\n"),
    "only-build-generic": ("      noarch: generic\n", "      build:\n        - strengths\n"),
    "said-twice": ("", f"{REQUIRES}      run:\n        - strengths-weak\n        - strengths-strong 1 0\n"),
    "only-host": ("", "      host:\n        - strengths\n"),
}
EXPORTS_TEXT = EXPORTS.format(
    outputs="".join(
        _OUTPUT.format(name=name, build=build, requirements=requirements)
        for name, (build, requirements) in EXPORTS_OUTPUTS.items()
    )
)
