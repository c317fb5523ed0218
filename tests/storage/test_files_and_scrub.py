import json
import os
import stat
from pathlib import Path

import pytest

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage.files import (
    atomic_dir,
    atomic_write_json,
    atomic_write_text,
)
from hf_rlhf.storage.secrets import REDACTED, find_secrets, redact_secrets

TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0hL"


class TestAtomicWrite:
    def test_a_folder_takes_the_place_of_another_at_once_or_not_at_all(self, tmp_path, monkeypatch):
        out = tmp_path / "model"
        with atomic_dir(out) as folder:
            (folder / "a").write_text("old")
        with atomic_dir(out, overwrite=True) as folder:
            (folder / "a").write_text("new")
            made = folder.stat().st_ino
            assert (out / "a").read_text() == "old"
        assert out.stat().st_ino == made
        real = Path.rename

        def full(path, target):
            if path.suffix == ".tmp":
                raise OSError(28, "No space left on device")
            return real(path, target)

        monkeypatch.setattr(Path, "rename", full)
        with (
            pytest.raises(RunFolderError, match="No space left"),
            atomic_dir(out, overwrite=True),
        ):
            pass
        assert (out / "a").read_text() == "new"
        assert os.listdir(tmp_path) == ["model"]

    def test_a_private_file_is_private_from_the_start(self, tmp_path, monkeypatch):
        path, modes = tmp_path / "key", []
        real = os.replace

        def look(source, target):
            modes.append(stat.S_IMODE(os.stat(source).st_mode))
            return real(source, target)

        monkeypatch.setattr(os, "replace", look)
        path.write_text("")
        path.chmod(0o644)
        atomic_write_text(path, "k", mode=0o600)
        assert modes == [0o600]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    @pytest.mark.parametrize("path", ["file/x", "file/sub/x", "x" * 300])
    def test_a_file_that_cannot_be_made_is_named(self, tmp_path, path):
        (tmp_path / "file").write_text("")
        with pytest.raises(RunFolderError, match=f"{path} cannot be written"):
            atomic_write_text(tmp_path / path, "y")

    def test_keeps_permissions(self, tmp_path):
        path = tmp_path / "x"
        path.write_text("")
        path.chmod(0o640)
        atomic_write_text(path, "y")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def test_refuses_what_is_not_json_before_touching_the_file(self, tmp_path):
        path = tmp_path / "x.json"
        path.write_text("{}")
        with pytest.raises(ValueError, match="nan"):
            atomic_write_json(path, {"loss": float("nan")})
        assert path.read_text() == "{}"


class TestScrub:
    @pytest.mark.parametrize("unit", ["a.", "a-b.", "basic "])
    def test_no_text_takes_long(self, unit):
        """Completions are scrubbed; one word of 200,000 characters took minutes."""
        text = unit * (300_000 // len(unit))
        assert redact_secrets(text) == text

    @pytest.mark.parametrize(
        ("text", "left"),
        [
            (TOKEN, REDACTED),
            ("sk-proj-abcdEFGH1234_5678-xyz", REDACTED),
            ("github" + "_pat_11ABCDEFG0abcdefghij_klmnop", REDACTED),
            ("id AKIA" + "IOSFODNN7EXAMPLE,", f"id {REDACTED},"),
            ("Authorization: Bearer abcdefghijklmnop1234", f"Authorization: Bearer {REDACTED}"),
            ("https://joe:pa55@judge.example/v1", f"https://{REDACTED}@judge.example/v1"),
            ("via http://joe:p@55@host:3128.", f"via http://{REDACTED}@host:3128."),
            ("http://h/v1?api_key=abc&model=m", f"http://h/v1?api_key={REDACTED}&model=m"),
            ("s3://b/k?X-Amz-Signature=00ff", f"s3://b/k?X-Amz-Signature={REDACTED}"),
        ],
    )
    def test_removes_secrets_by_their_form(self, text, left):
        assert redact_secrets(text) == left

    @pytest.mark.parametrize(
        "text",
        [
            *("hf_rlhf_refiner.trainer:RefinerGRPOTrainer", "task-specific-long-hyphenated-name"),
            *("https://host/a?page=2", "mail@example.com", "<answer>risk-averse</answer>"),
            "1d5e7c0b9a8f7e6d5c4b3a29181716151413121f",
            *("MKTAYASIAKQRQISFVKSHFSRQ", "ASIAN-PACIFIC", "ASIAPACIFICCOOPERATION"),
        ],
    )
    def test_leaves_the_rest(self, text):
        assert redact_secrets(text) == text

    @pytest.mark.parametrize("start", ["hf_", "sk-", "github_pat_", "AKIA"])
    @pytest.mark.parametrize("before", ["\n", "é", ""])
    def test_finds_and_removes_a_token_in_json_as_in_text(self, start, before):
        token = start + "A1" * (10 if start == "github_pat_" else 8)
        text = f"key:{before}{token}" if before else token
        packed = json.dumps(text)  # as a tool's arguments are: a text that is JSON
        for content in (text, json.dumps(text, ensure_ascii=False), packed, json.dumps(packed)):
            assert find_secrets(content.encode())
            assert "A1A1" not in redact_secrets(content)

    def test_leaves_a_word_that_only_ends_like_a_token(self):
        content = json.dumps(f"\ntask-{'A1' * 8}")
        assert not find_secrets(content.encode())
        assert redact_secrets(content) == content

    def test_removes_the_password_of_an_address_in_the_environment_wherever_it_stands(
        self, monkeypatch
    ):
        monkeypatch.setenv("HTTPS_PROXY", "http://joe:p%40ss-w0rd@proxy:3128")
        for bare in ("p@ss-w0rd", "p%40ss-w0rd"):
            assert redact_secrets(f"login as joe with {bare}!") == f"login as joe with {REDACTED}!"
            assert find_secrets(f"with {bare}".encode()) == ["HTTPS_PROXY"]
        assert redact_secrets("proxy:3128 of joe") == "proxy:3128 of joe"

    def test_removes_fields_and_flags_that_are_secret_by_name(self):
        config = {
            **{"hub_token": "opaque", "judge": {"api-key": "k"}, "password": ""},
            **{"eos_token": "</s>", "max_tokens": 5, "api_key_env": "MY_KEY", "token": None},
        }
        assert redact_secrets(config) == {
            **{"hub_token": REDACTED, "judge": {"api-key": REDACTED}, "password": ""},
            **{"eos_token": "</s>", "max_tokens": 5, "api_key_env": "MY_KEY", "token": None},
        }
        command = ["x", "--judges.main.api_key", "k", "--hub_token=t", "--eos_token", "</s>"]
        assert redact_secrets(command) == [
            *("x", "--judges.main.api_key", REDACTED, f"--hub_token={REDACTED}"),
            *("--eos_token", "</s>"),
        ]
