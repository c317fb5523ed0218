"""What a name that is not here means: a path that was mistyped, or a repository on the Hub."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hf_rlhf.data.sources import read_rows
from hf_rlhf.errors import DataError, ModelError
from hf_rlhf.models.loading import find_adapter
from hf_rlhf.models.locate import absence_reason, check_exists, find_model

NOBODY = "http://127.0.0.1:9"
"""The port of `discard`, where nobody listens."""


def serves(monkeypatch, endpoint):
    """Let the Hub's client ask at `endpoint`, as HF_ENDPOINT in the environment would."""
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder with one run in it, and an empty cache; nobody answers for the Hub."""
    (tmp_path / "runs" / "sft-tiny" / "merged").mkdir(parents=True)
    (tmp_path / "runs" / "sft-tiny" / "merged" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    serves(monkeypatch, NOBODY)
    return tmp_path


@contextmanager
def answering(monkeypatch, status, code=""):
    """A Hub that gives one answer to everything; yields what it was asked."""
    requests = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            requests.append(self.path)
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    serves(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
    try:
        yield requests
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./runs/sft-tinyy", "did you mean 'sft-tiny'?"),
        ("runs/sft-tinyy/merged", "did you mean 'sft-tiny'?"),
        ("C:\\models\\base", "there is no folder"),
        (f"/{'x' * 300}/y/z", "there is no folder"),
    ],
)
def test_a_path_is_never_asked_for(monkeypatch, name, message):
    with answering(monkeypatch, 200) as requests:
        assert message in absence_reason(name)
    assert requests == []


def test_what_stands_in_a_folder_that_is_here_is_asked_for_once(monkeypatch):
    with answering(monkeypatch, 401, "RepoNotFound") as requests:
        message = absence_reason("runs/sft-tinyy")
    assert len(requests) == 1
    assert "there is no folder 'runs/sft-tinyy' here" in message
    assert "has no model of that name" in message
    assert "did you mean 'sft-tiny'?" in message


@pytest.mark.parametrize(
    ("status", "code"), [(200, ""), (404, "EntryNotFound"), (403, "GatedRepo"), (503, "")]
)
def test_what_the_hub_may_have_is_left_to_the_loader(monkeypatch, status, code):
    with answering(monkeypatch, status, code) as requests:
        assert absence_reason("org/model") is None
        assert absence_reason("org/rows", "dataset") is None
    assert requests[-1].startswith("/datasets/org/rows/")


def test_what_the_cache_has_is_not_asked_for(folder):
    (folder / "cache" / "models--org--model" / "snapshots" / "abc").mkdir(parents=True)
    assert absence_reason("org/model") is None
    assert absence_reason("org/model", "dataset") is not None


def test_models_adapters_and_datasets_are_looked_for_alike():
    for find in (find_model, find_adapter):
        with pytest.raises(ModelError, match="did you mean 'sft-tiny'"):
            find("runs/sft-tinyy")
    with pytest.raises(DataError, match=r"(?s)no file or folder 'runs/rows' here.*does not answer"):
        read_rows("runs/rows")


def test_a_folder_that_is_no_model_says_what_it_is(folder):
    with pytest.raises(ModelError, match="whose model is runs/sft-tiny/merged"):
        find_model("runs/sft-tiny")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="It is an adapter: `adapter: adapter` continues it"):
        find_model("adapter")
    with pytest.raises(ModelError, match="is a file"):
        check_exists("runs/sft-tiny/merged/config.json")
    with pytest.raises(ModelError, match="has no folder 'tiny_polcy' .did you mean 'tiny_policy'"):
        find_model("package://hf_rlhf_refiner/tiny_polcy")
