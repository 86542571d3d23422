"""Build a recipe with a ``yum_requirements.txt`` in an image with dnf and a repository of RPM packages.

    .venv/bin/python -m tests.trials.yum_requirements [docker] [podman]

The image is Debian's with its dnf, rpm and createrepo_c, and has a repository with two packages made by rpmbuild: one
with a header, a program, a group and a folder of the group's, the other stands for the shell, which no RPM package of
Debian provides. The recipe uses the header and the program as the user who builds, without the network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.container import container as container_container
from kiln.container import images
from kiln.container.container import Container
from kiln.container.engine import Engine, choose_engine
from kiln.container.plan import ContainerRun
from kiln.image import worker
from kiln.recipe.feedstock import Feedstock
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = ("dnf", "createrepo-c", "rpm")
BASE, REPOSITORY = "localhost/kiln-trial-rpm:bookworm", "localhost/kiln-trial-rpm:repository"
SPEC = r"""
Name: kiln-hello
Version: 1.5
Release: 2
Summary: A header, a program, a group
License: MIT
BuildArch: noarch
%description
A header, a program, a group.
%install
mkdir -p %{buildroot}/usr/include %{buildroot}/usr/bin %{buildroot}/var/lib/kiln-hello
echo '#define KILN_HELLO 15' >%{buildroot}/usr/include/kiln_hello.h
printf '#!/bin/sh\necho hello\n' >%{buildroot}/usr/bin/kiln-hello
chmod 755 %{buildroot}/usr/bin/kiln-hello
%pre
getent group kilnhello >/dev/null || groupadd -r kilnhello
%files
/usr/include/kiln_hello.h
/usr/bin/kiln-hello
%attr(2750,root,kilnhello) /var/lib/kiln-hello

%package -n kiln-shell
Summary: Stands for Debian's shell
Provides: /bin/sh
%description -n kiln-shell
Stands for Debian's shell.
%files -n kiln-shell
"""
MAKE = f"""
set -eu
mkdir -p /srv/repository /tmp/build /etc/yum.repos.d
cat >/tmp/hello.spec <<'END'
{SPEC}
END
rpmbuild -bb --define '_topdir /tmp/build' /tmp/hello.spec
cp /tmp/build/RPMS/noarch/*.rpm /srv/repository
createrepo_c /srv/repository
printf '[local]\\nname=local\\nbaseurl=file:///srv/repository\\ngpgcheck=0\\n' >/etc/yum.repos.d/local.repo
"""
META = r"""package:
  name: system-dependency
  version: 1.0
build:
  noarch: generic
  script:
    - kiln-hello
    - grep "KILN_HELLO 15" /usr/include/kiln_hello.h
    - grep -E '^CapEff:\s0+$' /proc/self/status
    - if ls /sys/class/net | grep -v lo; then exit 1; fi
    - mkdir -p $PREFIX/share && (id -u; kiln-hello) >$PREFIX/share/hello.txt
test:
  commands:
    - grep hello $PREFIX/share/hello.txt
about:
  license: MIT
"""
VARIANTS = f"docker_image:\n  - {REPOSITORY}\nchannel_sources:\n  - file://{{channel}}\n"
REQUIREMENTS = "# a comment\nkiln-hello  # a header and a program\n"


def main() -> None:
    """Run the trial with the engines of the command line, or both; the exit code is 1 when one went wrong."""
    faults = [fault for name in sys.argv[1:] or ("docker", "podman") for fault in trial(name)]
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(bool(faults))


def trial(name: str) -> list[str]:
    """Build with one engine, print the seconds, and return what went wrong."""
    engine = choose_engine(name, env=os.environ).engine
    assert engine is not None
    faults = []
    prepare(engine)
    before = derived(engine)
    try:
        with tempfile.TemporaryDirectory(prefix="kiln-yum-") as folder:
            feedstock = recipe(Path(folder))
            for turn in ("first", "second"):
                start = time.monotonic()
                code, output = kiln(feedstock, "build", "--all", "--rebuild", "--container", name)
                print(f"{name}: the {turn} build took {time.monotonic() - start:.1f} s")
                if code or (f"installing kiln-hello into {REPOSITORY}" in output) != (turn == "first"):
                    faults.append(f"{name}: the {turn} build ended with {code}:\n{output}")
            new = derived(engine) - before
            if len(new) != 1:
                faults.append(f"{name}: images {new}")
            faults += [f"{name}: {fault}" for tag in new for fault in of_image(engine, tag)]
            code, report = kiln(feedstock, "report", "--json")
            if f"{REPOSITORY}@sha256:" not in report or " with kiln-hello" not in report:
                faults.append(f"{name}: the report names no origin:\n{report}")
            (feedstock.recipe / "yum_requirements.txt").write_text("kiln-hello\nkiln-helo\n")
            code, output = kiln(feedstock, "build", "--all", "--container", name)
            if code != 10 or "recipe/yum_requirements.txt:2:1" not in output:
                faults.append(f"{name}: a package that does not exist ended with {code}:\n{output}")
    finally:
        for tag in derived(engine) - before:
            engine.run_command("image", "rm", tag)
        engine.run_command("image", "rm", REPOSITORY)
    return faults


def prepare(engine: Engine) -> None:
    """Make the image with the repository."""
    folder = Feedstock(root=ROOT).artifacts / "images"
    worker.provide_image(engine, worker.base_image_recipe(extra=DEBIAN), tag=BASE, folder=folder, env=os.environ)
    with Container(engine, ContainerRun(image=BASE, argv=("sh", "-c", MAKE))) as container:
        result = container.run()
        assert result.ok, result.tail
        container.commit(
            REPOSITORY,
            changes=("USER conda", "ENV http_proxy=", 'ENTRYPOINT ["/no/such/program"]', 'CMD ["/bin/bash"]'),
        )


def recipe(folder: Path) -> Feedstock:
    """Write the feedstock and an empty channel, and expand its configs."""
    for subdir in ("noarch", "linux-64"):
        (folder / "channel" / subdir).mkdir(parents=True)
        (folder / "channel" / subdir / "repodata.json").write_text('{"packages": {}, "packages.conda": {}}')
    feedstock = builders.feedstock(
        folder / "feedstock",
        META,
        VARIANTS.format(channel=folder / "channel"),
        files={"recipe/yum_requirements.txt": REQUIREMENTS},
    )
    code, output = kiln(feedstock, "rerender")
    assert code == 0, output
    return feedstock


def kiln(feedstock: Feedstock, *words: str) -> tuple[int, str]:
    """Run kiln; return its exit code and output."""
    command = (sys.executable, "-m", "kiln", "-C", str(feedstock.root), *words)
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return result.returncode, result.stdout


def derived(engine: Engine) -> set[str]:
    """Return the names of the derived images."""
    words = ("image", "ls", "--filter", f"label={container_container.LABEL}", "--format", "{{.Repository}}:{{.Tag}}")
    return set(engine.run_command(*words).stdout.split())


def of_image(engine: Engine, tag: str) -> Iterator[str]:
    """Yield what is wrong with a derived image: it has the settings of the image below."""
    described = images.inspect_image(engine, tag) or {}
    config = described["Config"]
    settings = (config["User"], config["Entrypoint"], config["Cmd"])
    if settings != ("conda", ["/no/such/program"], ["/bin/bash"]):
        yield f"settings {json.dumps(settings)}"
    if images.image_labels(engine, tag)[container_container.LABEL] != "kiln-hello":
        yield f"labels {images.image_labels(engine, tag)}"
    if leaks := [entry for entry in config["Env"] if "proxy" in entry.lower() and not entry.endswith("=")]:
        yield f"proxies {leaks}"


if __name__ == "__main__":
    main()
