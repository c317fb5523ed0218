"""Digests of a reward model's training prompts and responses, in a file beside it.

On gold rows from its training data a reward model only measures memorisation. Digests do not depend
on the format (messages or text, JSON or Parquet) or the order of rows. They do not hide a text that
can be guessed.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hf_rlhf.data.messages import text_of
from hf_rlhf.errors import DataError
from hf_rlhf.storage.files import atomic_write_text

NAME = "trained_on.json"
RESPONSES = ("chosen", "rejected", "completion", "completions")
_MARKS = " .,:;!?\"'`*_…。？！"
_DIGEST = "[0-9a-f]{16}"
_LABEL = re.compile(
    r"^\W*(?:human|user|assistant|system|prompt|question|instruction|input|answer|response|q|a)\s*:"
    r"|<\|(?:im_start|im_end|start_header_id|end_header_id|begin_of_text|end_?of_?text|eot_id|end)\|>"
    r"(?:(?:system|user|assistant)\b)?|<\|(?:system|user|assistant)\|>|</?s>|\[/?INST\]"
    r"|^#+\s*(?:instruction|input|response)\b",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class TrainedRows:
    """Digests of prompts, and of each response with its prompt."""

    prompts: frozenset[str]
    responses: frozenset[str]
    complete: bool = True
    """False: the initial weights were trained on other, unknown rows."""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> "TrainedRows":
        """Return the digests of rows. A prompt that all rows share is the task, and is skipped."""
        prompts, responses = set(), set()
        for row in rows:
            prompt = row.get("prompt") or ""
            prompts.add(row_digest(prompt))
            given = (row[name] for name in RESPONSES if row.get(name) is not None)
            responses |= {row_digest(prompt, response) for response in given}
        telling = prompts - {row_digest("")} if len(prompts) > 1 else ()
        return cls(frozenset(telling), frozenset(responses))

    def __or__(self, other: "TrainedRows") -> "TrainedRows":
        """Return the union, for a model that was trained twice."""
        complete = self.complete and other.complete
        return TrainedRows(self.prompts | other.prompts, self.responses | other.responses, complete)

    @classmethod
    def read(cls, folder: Path) -> "TrainedRows | None":
        """Return the training digests in a model folder; None without a file. Raises DataError."""
        file = folder / NAME
        if not file.exists():
            return None
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            prompts, responses = (
                frozenset(re.findall(_DIGEST, content[name])) for name in ("prompts", "responses")
            )
            return cls(prompts, responses, bool(content["complete"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file} is no list of digests: {error}. Take a whole copy.") from None

    def write(self, folder: Path) -> None:
        """Write the digests in sorted order, which does not reveal the order of rows."""
        digests = {name: "".join(sorted(getattr(self, name))) for name in ("prompts", "responses")}
        atomic_write_text(folder / NAME, json.dumps({**digests, "complete": self.complete}))


def row_digest(prompt: Any, response: Any = None) -> str:
    """Return a digest of a prompt, or of a response to it.

    Role labels, system prompts, case, white space, and punctuation at both ends are ignored.
    """
    parts = [_words(each) for each in (prompt, response) if each is not None]
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _words(value: Any) -> str:
    turns = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(turn, str) for turn in turns):
        text = "\n".join(turns)
    elif all(isinstance(turn, Mapping) for turn in turns):
        text = text_of([turn for turn in turns if turn.get("role") != "system"])
    else:
        text = json.dumps(value, default=str)
    return " ".join(_LABEL.sub(" ", text).split()).casefold().strip(_MARKS)
