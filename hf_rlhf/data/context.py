"""`context: last_turn`: of each conversation the system turn and the last one of the user."""

from dataclasses import dataclass, replace
from typing import Any

from hf_rlhf.data.examples import Example
from hf_rlhf.data.trl_format import TrlFormat
from hf_rlhf.errors import DataError


@dataclass
class LastTurn:
    """Leaves out the turns between the system turn and the user's last one, and counts them."""

    trl_format: TrlFormat
    rows: int = 0
    turns: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        if self.trl_format.form == "messages":
            raise DataError(
                "`context: last_turn` leaves out the earlier turns, and `target: every` learns "
                "them. Use `target: final`, or `context: full`."
            )

    def cut(self, example: Example) -> Example:
        """Return the example without the turns between, if it has any."""
        system = [turn for turn in example.history[:-1] if turn["role"] == "system"]
        last = max(n for n, turn in enumerate(example.history) if turn["role"] == "user")
        short = replace(example, history=[*system, *example.history[last:]])
        turns = len(example.history) - len(short.history)
        if turns:
            self.rows += 1
            self.turns += turns
            self.tokens += self._tokens(example, short)
        return short

    def _tokens(self, example: Example, short: Example) -> int:
        if not callable(self.trl_format.tokenizer):  # rows are read without a model
            return 0
        prompts = [replace(each, answers=()) for each in (example, short)]
        (before, _), (after, _) = self.trl_format.lengths(prompts, [None, None])
        return before - after

    def report(self) -> dict[str, Any]:
        """Return what was left out."""
        counts = {"rows_cut": self.rows, "turns_cut": self.turns}
        if callable(self.trl_format.tokenizer):
            counts["tokens_cut"] = self.tokens
        return {"context": {"kept": "last_turn", **counts}}
