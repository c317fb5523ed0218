"""A classification model made of another base by an adapter with a head, as a reward model is."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ModelError
from hf_rlhf.models.adapter import LoraAdapter, check_head
from hf_rlhf.models.safetensors import Stored


@dataclass(frozen=True)
class Classifier:
    """The sequence classification model that an adapter with a head makes of another base."""

    model: Any
    """On the meta device."""
    head: Mapping[str, Stored]
    """The parameters of its head, in the adapter's file."""

    @classmethod
    def of(cls, base: Any, lora: LoraAdapter) -> "Classifier | None":
        """Return what `lora` makes of `base`; None if that is a model of the base's own kind.

        Raises ModelError for an adapter without its head.
        """
        import torch
        from transformers import AutoModelForSequenceClassification

        head = check_head(lora)
        if not head or all(name in base.state_dict() for name in head):
            return None
        weight = next(stored for name, stored in head.items() if name.endswith("weight"))
        config = deepcopy(base.config)
        config.num_labels = weight.shape[0]
        try:
            with torch.device("meta"):
                return cls(AutoModelForSequenceClassification.from_config(config), head)
        except ValueError as error:
            raise ModelError(
                f"{lora.folder} is of sequence classification, which transformers does not have "
                f"for {type(base).__name__}: {error}"
            ) from error

    def tensors(self, stored: Mapping[str, Stored], keys: Mapping[str, str]) -> dict[str, Stored]:
        """Return the base's tensors without what only it has (its own head), and with the head.

        `keys` are the base's, by parameter of the base.
        """
        parameters = set(self.model.state_dict())
        dropped = {key for name, key in keys.items() if name not in parameters}
        return {**{k: v for k, v in stored.items() if k not in dropped}, **self.head}

    def describe(self, config: dict[str, Any], folder: Path) -> None:
        """Write into `config` what makes it one of this model; `folder` has the tokenizer."""
        own = self.model.config
        config["architectures"] = [type(self.model).__name__]
        config["id2label"] = {str(index): name for index, name in own.id2label.items()}
        config["label2id"] = own.label2id
        pad = _pad_token(folder)
        if pad is not None:
            # Its score is that of the last token that is not padding.
            config["pad_token_id"] = pad
        elif config.get("pad_token_id") is None:
            raise ModelError(
                f"{folder} would have no pad token, by which a classifier finds the last token of "
                "a text. Save the tokenizer, with a pad token, beside the adapter."
            )


def _pad_token(folder: Path) -> int | None:
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").exists():
        return None
    result: int | None = AutoTokenizer.from_pretrained(folder).pad_token_id
    return result
