"""The health check of the image of Serving: ready, loading, unknown and absent are told apart."""

from __future__ import annotations

import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECK = Path(__file__).parents[2] / "kiln" / "image" / "kinds" / "models-are-served.sh"
# What Serving 2.x answers to GET /v1/models/NAME, as its guide of the REST API shows it.
STATUS = """{
 "model_version_status": [
  {
   "version": "1",
   "state": "%s",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  }
 ]
}
"""
CONFIG = """
model_config_list {
  config { name: "half" base_path: "/models/half" model_platform: "tensorflow" }
  config {
    name: 'third'  # name: "not a model"
    base_path: "/models/third"
    version_labels { key: "stable" value: 1 }
  }
}
"""


class Server(BaseHTTPRequestHandler):
    """Answers as Serving's REST interface does: half is served, third is loading, others are unknown."""

    def do_GET(self) -> None:
        state = {"/v1/models/half": "AVAILABLE", "/v1/models/third": "LOADING"}.get(self.path)
        text = STATUS % state if state else '{"error": "Could not find any versions of model"}'
        self.send_response(200 if state else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def check(port: int, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "MODEL_NAME": "model", **settings}
    return subprocess.run(["bash", CHECK, str(port)], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("model", "served"), [("half", True), ("third", False), ("none", False)])
def test_a_model_is_served_once_it_is_available(port: int, model: str, *, served: bool) -> None:
    assert (check(port, MODEL_NAME=model).returncode == 0) is served


@pytest.mark.parametrize(("config", "served"), [(CONFIG, False), (CONFIG.replace("third", "half"), True)])
def test_of_several_models_all_must_be_served(port: int, tmp_path: Path, config: str, *, served: bool) -> None:
    file = tmp_path / "models.config"
    file.write_text(config)
    ended = check(port, MODEL_CONFIG_FILE=str(file))
    assert (ended.returncode == 0) is served, ended.stdout
    assert served or "third" in ended.stdout


def test_an_unknown_model_of_a_config_is_named_with_the_answer(port: int, tmp_path: Path) -> None:
    file = tmp_path / "models.config"
    file.write_text(CONFIG.replace("half", "typo"))
    assert "typo: HTTP/1.0 404" in check(port, MODEL_CONFIG_FILE=str(file)).stdout


def test_without_a_server_nothing_is_served(port: int, tmp_path: Path) -> None:
    assert check(1).returncode != 0
    assert check(port, MODEL_CONFIG_FILE=str(tmp_path / "missing")).returncode != 0
