"""Use a saved reward model in any run: `{name: reward_model, model: FOLDER_OR_HUB_ID}`.

Policy and reward model exchange text. The reward model reads prompt and completion with its own
tokenizer and, for messages, its own chat template, so their families may differ and the policy's
special tokens never reach it. As in its training (TRL's `RewardTrainer`), every plain-text
completion, even if truncated, gets the reward model's end-of-sequence token.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import HeldModel, Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import ModelError, RewardError
from hf_rlhf_classic.encoding import ended, is_text, joined, tokens
from hf_rlhf_classic.pairs import scores
from hf_rlhf_classic.saved_scorer import TextScorer

HEAD = "score.weight"
"""transformers' names for the linear head, without bias, of a sequence classification model."""


@dataclass
class RewardModel(TextScorer):
    """Return the score of a saved reward model, minus `mean`, divided by `std`.

    The model comes from `--plugin reward`, or is any other that transformers loads as a sequence
    classification model with a single label. It is loaded on the first call in each process.
    """

    adapter: str | None = None
    """A LoRA reward adapter with its score head: a folder, a run folder or a Hub id. `model` is
    then its base."""
    adapter_revision: str | None = None
    """Hub revision of `adapter`."""
    too_long: Literal["cut", "abstain", "error"] = "cut"
    """Handling of a longer text: truncate its start, give no score, or stop the run. The count is
    logged as `reward_model/too_long`."""
    mean: float = 0.0
    """Subtracted from the score. A reward model's card has its mean on held-out texts."""
    std: float = 1.0
    """Divides the score after `mean` is subtracted."""

    kind = "reward_model"
    trained_by = "reward"

    def __post_init__(self) -> None:
        """Check everything that can be checked before weights load. Raises ModelError."""
        super().__post_init__()
        if not math.isfinite(self.mean) or not 0 < self.std < math.inf:
            raise ModelError(
                f"reward_model: std {self.std} must be above 0, mean {self.mean} and std finite."
            )
        self.locate()

    @property
    def name(self) -> str:
        """The reward's name in messages."""
        return super().name + (f" with adapter {self.adapter!r}" if self.adapter else "")

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score per completion.

        Raises RewardError for a score that is not finite, and for a text that must stop the run;
        ModelError for an unusable model.
        """
        model, tokenizer = self.loaded()
        texts = [
            self._read(tokenizer, prompt, completion)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        limit = self.limit(model)
        long = [limit is not None and len(ids) > limit for ids in texts]
        self._tell(sum(long), len(texts), limit, log_metric)
        rows = [row for row in range(len(texts)) if not long[row] or self.too_long == "cut"]
        sequences = [texts[row][-limit:] if limit else texts[row] for row in rows]
        pad = model.config.get_text_config().pad_token_id
        result = dict(zip(rows, scores(model, sequences, pad, self.batch_size), strict=True))
        for row, score in result.items():
            begins = f", which begins {text_of(completions[row])[:80]!r}"
            self.check_finite([score], row, begins, model.dtype)
        return [
            (result[row] - self.mean) / self.std if row in result else None
            for row in range(len(texts))
        ]

    def advice(self) -> list[str]:
        """Return what to know before a policy learns from it: the quality of its evaluation."""
        from hf_rlhf_classic.reward_quality import quality_advice

        name, revision = self.model, self.revision
        if self.adapter is not None:
            name, revision = self.adapter, self.adapter_revision
        text = quality_advice(name, revision)
        return [text] if text else []

    def held_model(self) -> HeldModel:
        """Return its model, for the memory plan."""
        return HeldModel(self.model, self.dtype)

    def _read(self, tokenizer: Any, prompt: Any, completion: Any) -> list[int]:
        if not is_text(completion):
            if not tokenizer.chat_template:
                raise ModelError(
                    f"the tokenizer of {self.name} has no chat template, and the "
                    "prompts are messages. Use plain-text prompts, or a reward model with one."
                )
            prompt = [{"role": "user", "content": prompt}] if is_text(prompt) else prompt
            prompt, completion = _plain(prompt), _plain(completion)
        return list(tokens(tokenizer, joined(prompt, ended(tokenizer, completion))))

    def _tell(
        self,
        count: int,
        given: int,
        limit: int | None,
        log_metric: Callable[[str, float], None] | None,
    ) -> None:
        """Report how many texts are too long."""
        if log_metric is not None and given:
            log_metric("reward_model/too_long", count / given)
        if not count:
            return
        text = f"{self.name}: {count} of {given} texts have over {limit} tokens"
        if self.too_long == "error":
            raise RewardError(f"{text}. Shorten them, or write `too_long: cut` or `abstain`.")
        if log_metric is None:
            done = "their start is cut" if self.too_long == "cut" else "they get no score"
            logging.getLogger(__name__).warning("%s; %s.", text, done)

    def locate(self) -> tuple[str, Path | None]:
        """Check model and adapter folder, and return the arguments for `from_pretrained`."""
        from hf_rlhf.models import check_base, find_adapter, find_model, read_adapter

        path = find_model(self.model)
        if self.adapter is None:
            _check_is_scorer(Path(path), self.model)
            return path, None
        folder = find_adapter(self.adapter, self.adapter_revision)
        if not any(name.endswith(HEAD) for name in read_adapter(folder).replacements):
            raise ModelError(
                f"reward_model: the adapter {self.adapter} has no score head. It is not one of a "
                "reward model, or was saved without its head; `--plugin reward` saves both."
            )
        check_base(folder, path, name=self.model, revision=self.revision)
        return path, folder

    def use(self, model: Any, tokenizer: Any) -> None:
        """Use a model that is already loaded, for example a base that several adapters share."""
        self._loaded = model, tokenizer

    def load_tokenizer(self) -> Any:
        """Return the adapter's tokenizer, or else the model's."""
        from transformers import AutoTokenizer

        path, adapter = self.locate()
        own = adapter is not None and (adapter / "tokenizer_config.json").exists()
        return AutoTokenizer.from_pretrained(
            adapter if own else path, revision=None if own else self.revision
        )

    def load(self, *, merge: bool = True) -> tuple[Any, Any]:
        """Return the model, with an adapter merged into it or as a PeftModel, and its tokenizer.

        Raises ModelError for any other kind of model.
        """
        from transformers import AutoModelForSequenceClassification

        from hf_rlhf.training import head_is_new

        path, adapter = self.locate()
        more: dict[str, Any] = {"num_labels": 1} if adapter else {}
        more |= {"dtype": self.dtype} if self.dtype else {}
        # An adapter brings the head, which `locate` has checked.
        with head_is_new(adapter is not None):
            model = self.pretrained(
                AutoModelForSequenceClassification, path, brings_head=adapter is not None, **more
            )
        if adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(adapter))
            model = model.merge_and_unload() if merge else model
        tokenizer = self.load_tokenizer()
        config = model.config.get_text_config()
        # A base's padding setting does not apply to an adapter on it.
        if config.pad_token_id is None or adapter is not None:
            end = tokenizer.eos_token_id
            config.pad_token_id = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        return self.ready(model), tokenizer


def _plain(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with text contents, as chat templates expect them."""
    return [{**turn, "content": text_of([turn])} for turn in turns]


def _check_is_scorer(folder: Path, name: str) -> None:
    """Raise ModelError for a folder with another kind of model; Hub ids are checked later."""
    if not folder.is_dir():
        return
    try:
        kinds = json.loads((folder / "config.json").read_text("utf-8")).get("architectures") or []
    except ValueError as error:
        raise ModelError(f"reward_model: {name}/config.json cannot be read: {error}") from None
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise ModelError(
            f"reward_model: {name} is a {', '.join(kinds) or 'model of no known kind'}, without a "
            "score head. Train one of it with `--plugin reward`."
        )
