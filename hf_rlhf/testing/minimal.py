"""Parts of a minimal run: rows, a reward that varies, settings for a CPU."""

from collections.abc import Collection
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from hf_rlhf.data.messages import text_of

if TYPE_CHECKING:
    from datasets import DatasetDict

STEPS = 2


def minimal_rows(columns: Collection[str] = ()) -> "DatasetDict":
    """Return 8 rows to train on and 4 held out: `prompt` as messages, `completion`, `answer`.

    If `columns`, the trainer's required columns, include `chosen` and `rejected`, or `messages`,
    these replace `completion`.
    """
    from datasets import Dataset, DatasetDict

    def rows(first: int, count: int) -> Any:
        return Dataset.from_list([_row(number, columns) for number in range(first, first + count)])

    return DatasetDict(train=rows(0, 8), test=rows(8, 4))


def _row(number: int, columns: Collection[str]) -> dict[str, Any]:
    def reply(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    prompt = [{"role": "user", "content": f"What is {number} + 1?"}]
    answer = str(number + 1)
    if "messages" in columns:
        return {"messages": [*prompt, *reply(answer)]}
    if "chosen" in columns:
        wrong = reply(f"It could be {number}.")
        return {"prompt": prompt, "chosen": reply(answer), "rejected": wrong, "answer": answer}
    return {"prompt": prompt, "completion": reply(answer), "answer": answer}


@dataclass
class LetterShare:
    """Share of ASCII letters in the first 64 characters, which can be learned."""

    def __call__(self, prompts: Any, completions: Any, **_: Any) -> list[float]:
        """Return a share for each completion."""
        texts = [text_of(completion)[:64] for completion in completions]
        return [
            sum(character.isascii() and character.isalpha() for character in text)
            / max(len(text), 1)
            for text in texts
        ]


def minimal_settings(config: type) -> dict[str, Any]:
    """Return settings for two steps on a CPU that the trainer's Config has."""
    settings = {
        "max_steps": STEPS,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
        "seed": 42,
    }
    names = {field.name for field in fields(config)} if is_dataclass(config) else set()
    return {name: value for name, value in settings.items() if name in names}
