"""`context: last_turn`: reduce each conversation to its system turn and the user's last turn."""

from dataclasses import dataclass, replace
from typing import Any

from hf_rlhf.data.examples import Example
from hf_rlhf.data.trl_format import TrlFormat
from hf_rlhf.errors import DataError


@dataclass
class LastTurn:
    """Drops and counts the turns between the system turn and the user's last turn."""

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
        """Return the shortened example."""
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
        """Return how many turns and rows were cut."""
        counts = {"rows_cut": self.rows, "turns_cut": self.turns}
        if callable(self.trl_format.tokenizer):
            counts["tokens_cut"] = self.tokens
        return {"context": {"kept": "last_turn", **counts}}
