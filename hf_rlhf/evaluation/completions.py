"""Completions of saved models, written during generation, so that none is generated twice.

A killed evaluation resumes where it stopped, with the same completions. Each launched process
computes a share of the batches and writes its own file.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import RunFolderError
from hf_rlhf.evaluation.generation import Completion, generate, longest_first, seed_of

Progress = Callable[[int], object]
"""Called with the number of new completions."""


class SavedValues:
    """A JSON value for each of many ids, computed in batches and saved after each batch.

    Batches follow `order`, by default the order of the ids.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        ids: Sequence[str],
        batch_size: int,
        order: Sequence[str] | None = None,
    ) -> None:
        self.folder, self.name, self.ids = folder, name, ids
        order = ids if order is None else order
        self.batches = [order[at : at + batch_size] for at in range(0, len(ids), batch_size)]

    def read(self) -> dict[str, Any]:
        """Return the saved values by id, in order. Raises RunFolderError for a damaged file."""
        paths = [self._path(0), *sorted(self.folder.glob(f"{self.name}.[0-9]*.jsonl"))]
        values = {key: value for path in paths if path.exists() for key, value in _lines(path)}
        return {key: values[key] for key in self.ids if key in values}

    def missing(self) -> list[str]:
        """Return the ids without a saved value."""
        saved = self.read()
        return [key for key in self.ids if key not in saved]

    def fill(
        self,
        compute: Callable[[Sequence[str]], Sequence[Any]],
        progress: Progress = lambda _: None,
    ) -> None:
        """Compute and save the missing values of this process's share.

        `compute` takes the ids of a batch and returns a JSON value for each.
        """
        from accelerate import PartialState

        state = PartialState()
        saved = self.read()
        for batch in self.batches[state.process_index :: state.num_processes]:
            missing = [key for key in batch if key not in saved]
            if not missing:
                continue
            values = dict(zip(missing, compute(missing), strict=True))
            self._append(values, state.process_index)
            progress(len(missing))

    def _path(self, process: int) -> Path:
        return self.folder / f"{self.name}{f'.{process}' if process else ''}.jsonl"

    def _append(self, values: Mapping[str, Any], process: int) -> None:
        path = self._path(process)
        path.parent.mkdir(parents=True, exist_ok=True)
        # As ASCII: UTF-8 cannot encode lone surrogates.
        lines = [json.dumps({"id": key, "value": value}) + "\n" for key, value in values.items()]
        with path.open("ab+") as file:
            _remove_torn_line(file)
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())


def _lines(path: Path) -> list[tuple[str, Any]]:
    values = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break  # truncated by a kill
        try:
            content = json.loads(line)
            values.append((content["id"], content["value"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{path}:{number} cannot be read ({error}). Delete the line to compute it again."
            ) from error
    return values


def _remove_torn_line(file: Any) -> None:
    """Remove the incomplete last line of a killed process."""
    if not file.tell():
        return
    file.seek(-1, os.SEEK_END)
    if file.read() != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


class Completions:
    """The completions of a saved model, in a folder.

    Args:
        folder: where they are saved, in `completions.jsonl`.
        prompts: id -> token ids; a batch holds prompts of similar length.
        tokenizer: the model's own.
        spec: batch size and sampling; temperature 0 decodes greedily.
        max_new_tokens: of each completion.
    """

    def __init__(
        self,
        folder: Path,
        prompts: Mapping[str, Sequence[int]],
        tokenizer: Any,
        spec: EvaluationSpec,
        max_new_tokens: int,
    ) -> None:
        self.folder, self.prompts = folder, prompts
        self._tokenizer, self._spec, self._max_new_tokens = tokenizer, spec, max_new_tokens
        self._saved = self.values("completions")

    def values(self, name: str) -> SavedValues:
        """Return other values of the same completions, saved beside them."""
        order = longest_first(self.prompts)
        return SavedValues(self.folder, name, list(self.prompts), self._spec.batch_size, order)

    def read(self) -> dict[str, Completion]:
        """Return the saved completions by id, in the order of the prompts."""
        return {key: Completion(**value) for key, value in self._saved.read().items()}

    def missing(self) -> list[str]:
        """Return the ids of prompts without a completion."""
        return self._saved.missing()

    def generate(self, model: Any, progress: Progress = lambda _: None) -> None:
        """Generate missing completions."""

        def batch(ids: Sequence[str]) -> list[dict[str, Any]]:
            started = time.monotonic()
            completions = generate(
                *(model, self._tokenizer, [self.prompts[key] for key in ids]),
                *(self._spec, self._max_new_tokens),
                # A resumed evaluation draws the same as an unbroken one.
                seeds=[seed_of(self._spec.seed, key) for key in ids],
            )
            seconds = (time.monotonic() - started) / len(ids)
            return [asdict(replace(each, seconds=seconds)) for each in completions]

        self._saved.fill(batch, progress)
