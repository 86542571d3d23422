#!/usr/bin/env python3
"""Build this feedstock's packages: conda-forge's entry point, for any Python from 3.10 on without installed packages.

It sets up an environment in .venv on first use, and passes all arguments to `kiln build`; see --help. kiln is the
folder next to this file (in kiln's own repository), or what requirements/kiln.txt names, which pip installs.
"""

import sys

MINIMUM = (3, 10)
REQUIREMENTS = "requirements/kiln.txt"


def main():
    """Replace this process by `kiln build` in the environment."""
    import os
    from pathlib import Path

    root = Path(__file__).resolve().parent
    words = ["--called", Path(__file__).name, "-C", str(root), "build", "--calling-python", sys.executable]
    arguments = ["-m", "kiln"] + words + sys.argv[1:]  # Python 2.7 must be able to parse this
    if (root / "kiln" / "base" / "bootstrap.py").is_file():
        sys.path.insert(0, str(root))
        from kiln.base.bootstrap import exec_in_environment

        exec_in_environment(root, *arguments)
    try:
        python = environment(root)
    except KeyboardInterrupt:
        sys.exit(130)
    os.execv(str(python), [str(python), "-I"] + arguments)


def environment(root):
    """Return the Python of .venv, after creating it if it is missing, unfinished or of another requirement."""
    import fcntl

    source, folder = root / REQUIREMENTS, root / ".venv"
    if not source.is_file():
        stop(3, "%s is missing" % source, "it names kiln for pip, and `kiln init` writes it")
    python, record = folder / "bin" / "python", folder / "kiln-requirements.txt"
    expected = "# %s\n%s" % (folder, source.read_text())
    with source.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two processes, the second waits for the first
        if python.exists() and record.is_file() and record.read_text() == expected:
            return python
        if folder.exists() and not record.is_file() and any(folder.iterdir()):
            stop(22, "%s is not an environment of this script" % folder, "move it away, then run this again")
        set_up(folder, python, record, source)
        record.write_text(expected)
    return python


def set_up(folder, python, record, source):
    """Make the environment anew; `record` stays empty until it is complete."""
    import shutil

    sys.stderr.write("setting up .venv from %s\n" % REQUIREMENTS)
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir()
    record.touch()
    base = getattr(sys, "_base_executable", None) or sys.executable
    if call([base, "-I", "-m", "venv", str(folder)]):
        hint = "apt install python%d.%d-venv, or run this with another Python" % sys.version_info[:2]
        stop(13, "%s could not make an environment" % base, hint)
    pip = [str(python), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    if call(pip + ["--no-user", "-r", str(source)]) or call([str(python), "-I", "-c", "import kiln.__main__"]):
        stop(14, "pip could not install kiln by %s" % source, "see pip's lines above, and `pip config list`")


def call(words):
    """Return a step's exit code; print its time every two seconds, then its output unless it is interrupted."""
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as output, subprocess.Popen(words, stdout=output, stderr=output) as process:
        for seconds in range(2, sys.maxsize, 2):
            try:
                process.wait(2)
                break
            except subprocess.TimeoutExpired:
                sys.stderr.write("running %s (%d s)\n" % (words[3], seconds))
            except KeyboardInterrupt:
                process.kill()
                raise
        output.seek(0)
        sys.stderr.write(output.read().decode("utf-8", "replace"))
    return process.returncode


def stop(code, what, hint):
    """Print an error and exit."""
    sys.stderr.write("error: %s\n  try: %s\n" % (what, hint))
    sys.exit(code)


if sys.platform == "win32":
    stop(33, "kiln runs on Linux and macOS", "on Windows, run it in WSL (wsl --install)")
elif sys.version_info >= MINIMUM:
    main()
else:
    sys.stderr.write("error: this is Python " + sys.version.split()[0] + ", but kiln needs 3.10 or newer\n")
    sys.stderr.write("  try: python3.14 build-locally.py, or python3.13, python3.12, python3.11, python3.10\n")
    sys.exit(12)
