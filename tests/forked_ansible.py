"""Run ``ansible-playbook`` many times: each call in a fork of one process, which has loaded Ansible.

The Python of the fleet's environment runs this file. A line of standard input is a call: its ``argv``, its ``env``, and
the file for its output; the answer is a line with the exit code. Ansible packs a module for the first call alone, and
each module is compiled for it: half of the processor time of a module that does little goes into that.
"""

from __future__ import annotations

import base64
import dataclasses
import gc
import importlib.util
import io
import json
import marshal
import os
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn


def main() -> None:
    """Answer calls until the input ends."""
    command = import_module("ansible.cli.playbook").PlaybookCLI
    import_module("ansible.executor.playbook_executor")  # the command imports it late
    packed = import_module("ansible.executor.module_common")._CachedModule
    cache = Path(import_module("ansible.constants").DEFAULT_LOCAL_TMP, "ansiballz_cache")
    gc.freeze()  # a fork would copy what the collector touches
    compiled: set[Path] = set()
    for line in sys.stdin:
        call = json.loads(line)
        child = os.fork()
        if not child:
            run(command, call)
        _, status = os.waitpid(child, 0)
        for file in {path for path in cache.glob("*") if path.suffix != ".lock"} - compiled:
            module = packed.load(str(file))
            dataclasses.replace(module, zip_data=with_bytecode(module.zip_data)).dump(str(file))
            compiled.add(file)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(command: Any, call: dict[str, Any]) -> NoReturn:
    """Run Ansible's command, and leave as the forked process: what ends with the first one stays."""
    os.environ.clear()
    os.environ.update(call["env"])
    output = os.open(call["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    code = 1
    try:
        command.cli_executor(call["argv"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def with_bytecode(data: bytes) -> bytes:
    """Return an archive of Python files with the bytecode of each; another version of Python reads the source."""
    archive = io.BytesIO(base64.b64decode(data))
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as opened:
        for name in opened.namelist():
            if name.endswith(".py"):
                code = compile(opened.read(name), name, "exec", dont_inherit=True)
                unchecked = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
                opened.writestr(f"{name}c", unchecked + marshal.dumps(code))
    return base64.b64encode(archive.getvalue())


if __name__ == "__main__":
    main()
