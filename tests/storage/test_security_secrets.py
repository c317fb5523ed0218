"""Canaries where secrets are kept, and a search of everything that a run writes or says.

Kept: environment variables, a judge's key, a proxy's password. Offered where they do not belong:
arguments, run-file keys, a judge's base_url. Searched: every file of the run folder, the judge's
cache, trackio's database and what was published, inside zip and Parquet files too; stdout, stderr.
"""

import base64
import json
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.rewards.judges.text_generation import OpenAIText
from hf_rlhf.storage.record import load_record
from hf_rlhf.storage.secrets import REDACTED, find_secrets, redact_secrets
from hf_rlhf.testing.scripted_server import ScriptedServer
from hf_rlhf.training.record_sections import reproduction

# Put together here, so that no file looks as if it held a token.
CANARIES = {
    "HF_TOKEN": "hf_" + "canaryCanaryCanaryCanary0123456789",
    "OPENAI_API_KEY": "sk-" + "canarycanary-openai-0123",
    "MY_JUDGE_KEY": "canary/judge+key=&with signs",
    "WANDB_API_KEY": "canary0wandb0canary0wandb0",
    "DEPLOY_SECRET": "canary-in-a-secret",
    "AWS_SECRET_ACCESS_KEY": "canary/AWS/0123456789abcdef",
    "DB_PASSWORD": "canary-password-'\"\\",
}
PROXY_PASSWORD = "canaryproxypassword"
OFFERED = "canary-offered-as-an-argument"
OFFERED_HEX = "0c4a1e9b7d2f8c3a5e6b1d0f9a8c7e2b"
OFFERED_DIGITS = "40917263540917263"
ALL_OFFERED = (OFFERED, OFFERED_HEX, OFFERED_DIGITS)


def forms(secret: str) -> set[bytes]:
    raw = secret.encode()
    texts = {secret, json.dumps(secret)[1:-1], quote(secret), quote(secret, safe="")}
    found = {text.encode() for text in texts} | {base64.b64encode(raw).rstrip(b"=")}
    return found | {base64.b64encode(b"user:" + raw).rstrip(b"=")}


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of a file, and of what is packed in it."""
    raw = path.read_bytes()
    yield str(path), raw
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield f"{path}/{name}", archive.read(name)
    if raw[:4] == b"PAR1":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        yield f"{path} as rows", repr(table.to_pylist()).encode() + repr(table.schema).encode()


def hits(*folders: Path) -> tuple[int, list[str]]:
    """Return how many contents were searched, and where a canary stands."""
    wanted = [*CANARIES.values(), PROXY_PASSWORD, *ALL_OFFERED]
    looked, found = 0, []
    for folder in folders:
        for path in folder.rglob("*"):
            if not path.is_file() or path.is_symlink():
                continue
            for where, content in contents(path):
                looked += 1
                found += [where for secret in wanted if any(f in content for f in forms(secret))]
    return looked, found


@pytest.fixture
def secrets(monkeypatch, tmp_path):
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{PROXY_PASSWORD}@proxy.invalid:3128")
    monkeypatch.setenv("HF_RLHF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()


DRIVER = """
import os, sys
from dataclasses import dataclass
from typing import Any
from hf_rlhf.contracts import Question

@dataclass
class Asks:
    judge: Any = None
    quotes: str = ""
    calls: int = 0

    async def __call__(self, prompts, completions, **_):
        self.calls += 1
        if self.quotes and self.calls > 2:
            raise KeyError(os.environ[self.quotes])
        texts = [str(completion) for completion in completions]
        verdicts = await self.judge.judge([Question("quality", text, "Is fine.") for text in texts])
        return [verdict.score for verdict in verdicts]

from hf_rlhf.testing.offering import offering
from hf_rlhf.train import main
with offering({"rewards": {"asks": Asks}}):
    status = main(sys.argv[1:])
sys.exit(status)
"""


def run(config: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, "--config", str(config), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    return done.returncode, done.stdout + done.stderr


def leaks(text: str) -> list[str]:
    wanted = [*CANARIES.values(), PROXY_PASSWORD, *ALL_OFFERED]
    return [s for s in wanted if any(form.decode() in text for form in forms(s))]


@pytest.mark.slow
def test_no_canary_is_in_anything_that_a_run_writes_or_says(tiny_run, secrets, tmp_path):
    """A run that ends and one whose reward quotes a key; a judge that quotes its own; a tracker."""

    def quotes_the_key(asked):
        key = asked.headers["authorization"]
        return json.dumps({"reason": f"you sent {key}", "score": len(asked.candidate) % 3})

    trackers = ["trackio"] if _has_trackio() else "none"
    tiny_run |= {"schema": 1, "report_to": trackers, "log_completions": True}
    tiny_run |= {"card": {"intended_use": f"Never show {CANARIES['DEPLOY_SECRET']}."}}
    tiny_run |= {"run_name": "canaries", "rewards": [{"name": "asks"}]}
    with ScriptedServer(quotes_the_key, key=CANARIES["MY_JUDGE_KEY"]) as server:
        judge = {"name": "openai", "model": "scripted", "base_url": server.base_url}
        tiny_run["judges"] = {"main": {**judge, "api_key_env": "MY_JUDGE_KEY"}}
        config = tmp_path / "run.yaml"
        config.write_text(json.dumps(tiny_run))
        status, said = run(config)
        assert status == 0, said
        assert server.requests
        second = str(tmp_path / "second")
        status, more = run(config, "--output_dir", second, "--rewards.0.quotes", "OPENAI_API_KEY")
    assert status == 2, more
    assert f"raised KeyError: '{REDACTED}'" in more
    assert load_record(second).status == "failed"
    config.unlink()  # ours: it holds what the card was told
    looked, found = hits(tmp_path)
    assert looked > 80
    assert found == []
    assert leaks(said + more) == []
    assert REDACTED in json.dumps(load_record(tiny_run["output_dir"]).to_json()["author"])
    if trackers != "none":
        assert list((tmp_path / "trackio").rglob("*.db"))
    assert list((tmp_path / "run").rglob("*.parquet"))
    assert (tmp_path / "cache" / "judge.sqlite").stat().st_size


def _has_trackio() -> bool:
    from importlib.util import find_spec

    return find_spec("trackio") is not None


JUDGE_FIELDS = {"name": "openai", "model": "m"}
MISPLACED = {
    "judges.main.api_key_env": {"judges": {"main": {**JUDGE_FIELDS, "api_key_env": OFFERED}}},
    "judges.number.api_key_env": {"judges": {"number": {"api_key_env": int(OFFERED_DIGITS)}}},
    "judges.main.extra_body.headers.0.X-Api-Key": {
        "judges": {"main": {"extra_body": {"headers": [{"X-Api-Key": OFFERED}]}}}
    },
    "dataset.clientSecret": {"dataset": {"clientSecret": OFFERED}},
    "rewards.0.options.password": {"rewards": [{"options": {"password": int(OFFERED_DIGITS)}}]},
}


@pytest.mark.parametrize("where", MISPLACED)
def test_a_key_in_a_field_of_any_depth_is_refused_unrepeated(where):
    base = {"plugin": "p", "dataset": {"name": "d"}}
    written = RunFile.from_mapping({**base, **MISPLACED[where]}, name="run.yaml")
    section, value = next(iter(MISPLACED[where].items()))
    inline = RunFile.from_mapping(base).override([f"--{section}", json.dumps(value)])
    for file in (written, inline):
        spec, problems = file.spec(allowed_settings={})
        said = "\n".join(map(str, problems))
        assert spec is None
        assert where in said
        assert leaks(said) == []


def test_what_is_only_named_like_a_secret_is_taken():
    judge = {**JUDGE_FIELDS, "api_key_env": "MY_KEY_2", "extra_body": {"max_tokens": 5}}
    settings = {"model_init_kwargs": {"token": True}, "hub_token": None, "pad_token": "<pad>"}
    file = RunFile.from_mapping(
        {"plugin": "p", "dataset": {"name": "d"}, "judges": {"secret": judge}, **settings}
    )
    assert file.spec(allowed_settings={})[1] == []


@pytest.mark.parametrize("made", [OpenAIJudge, OpenAIText])
@pytest.mark.parametrize(
    "fields",
    [
        {"api_key_env": f"a{OFFERED_HEX}"},
        {"extra_body": {"a": [{"token": OFFERED}]}},
    ],
)
def test_a_judge_made_in_python_takes_no_key_either(made, fields):
    with pytest.raises(JudgeError, match=next(iter(fields))) as refused:
        made("m", **fields, cache=False)
    assert leaks(str(refused.value)) == []


def test_the_recorded_command_is_scrubbed_as_it_is_parsed(secrets):
    quoted = f'{{main: {{"api_\\u006bey": "{OFFERED}", n: 1}}, plain: "fine"}}'
    argv = ["--judges", quoted, f"--model_init_kwargs={{token: {OFFERED}}}", "--x", "[unclosed"]
    command = reproduction(argv, 1, {"type": "NO"})
    assert leaks(shlex.join(command)) == []
    assert json.loads(command[command.index("--judges") + 1])["main"] == {
        "api_key": REDACTED,
        "n": 1,
    }
    assert command[-1] == REDACTED
    unchanged = ["--judges", "{a: {name: lexical}}"]
    assert reproduction(unchanged, 1, {"type": "NO"})[-2:] == unchanged


@pytest.mark.parametrize("name", CANARIES)
def test_every_form_of_a_secret_is_scrubbed_and_found(secrets, name):
    for form in forms(CANARIES[name]):
        text = form.decode()
        if text.startswith(base64.b64encode(b"user:").decode()[:6]):
            text = f"Authorization: Basic {text}"
        assert leaks(redact_secrets(f"a {text} b")) == [], text
        assert leaks(json.dumps(redact_secrets({"x": [text]}))) == [], text
    assert find_secrets(f"x={quote(CANARIES[name])}".encode())
