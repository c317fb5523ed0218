"""A loaded model, whose adapters are switched for each reply."""

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ModelError, did_you_mean

if TYPE_CHECKING:
    from hf_rlhf.evaluation import Completion

BASE = "base"


@dataclass
class ChatModel:
    """A base in memory, and the adapters on it by name; several threads may ask for replies."""

    model: Any
    tokenizer: Any
    positions: int | None
    base: str
    adapters: dict[str, str | None]
    """Name -> folder; None for the base alone. Adapters load on first use."""
    own: str
    """The name of the requested model."""
    record: Any = None
    """The record of its run, if any."""
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def open(
        cls, stack: ExitStack, where: str, others: Mapping[str, str] | None = None
    ) -> "ChatModel":
        """Load a model until `stack` closes, with `others` as further adapters of its base.

        Raises ModelError.
        """
        from accelerate import PartialState

        from hf_rlhf.evaluation.saved_models import find_saved
        from hf_rlhf.storage import RECORD_NAME, load_record

        whole = None
        try:
            saved = find_saved({"adapter": where})
        except ModelError:  # full weights; anything else raises its explanation here
            saved = whole = find_saved(where)
        folder = Path(where)
        own = folder.resolve().name if folder.exists() else where
        adapters: dict[str, str | None] = {own if whole else BASE: None}
        if whole is None:
            adapters |= {own: saved.adapter, **_beside(folder)}
        # A checkpoint lies two folders below its run's record, an adapter one.
        runs = [each for each in (folder, *folder.parents[:2]) if (each / RECORD_NAME).exists()]
        record = load_record(runs[0]) if runs else None
        model = stack.enter_context(
            replace(saved, adapter=None).load(PartialState().device, dtype="auto")
        )
        adapters |= others or {}
        tokenizer, positions = saved.tokenizer(), saved.positions()
        return cls(model, tokenizer, positions, saved.model, adapters, own, record)

    def load(self, name: str) -> str | None:
        """Load an adapter if it is not; return its name in peft, None for the base.

        Raises ModelError for an unknown adapter, or an adapter of another base.
        """
        from hf_rlhf.evaluation.saved_models import find_saved

        if name not in self.adapters:
            hint = did_you_mean(name, self.adapters)
            names = ", ".join(self.adapters)
            raise ModelError(f"no adapter is named {name!r}{hint}. There are: {names}.")
        if (where := self.adapters[name]) is None:
            return None
        from peft import PeftModel

        key = f"adapter_{[*self.adapters].index(name)}"  # peft takes no dots in a name
        if key not in getattr(self.model, "peft_config", ()):
            folder = find_saved({"base": self.base, "adapter": where}).adapter
            if isinstance(self.model, PeftModel):
                self.model.load_adapter(folder, adapter_name=key)
            else:
                self.model = PeftModel.from_pretrained(self.model, folder, adapter_name=key).eval()
        return key

    def reply(
        self,
        name: str,
        prompt: Any,
        sampling: Any,
        most: int,
        *,
        seed: int | None = None,
        on_text: Callable[[str], object] | None = None,
        stop: Event | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> tuple[int, "Completion"]:
        """Return the number of prompt tokens, and the completion by an adapter.

        It waits for replies of other threads.

        Args:
            name: the adapter.
            prompt: a text, or a conversation.
            sampling: temperature and top_p.
            most: limit on completion tokens; fewer if the model has no positions left.
            seed: for sampling; None draws a seed.
            on_text: receives the text as it comes.
            stop: ends the reply when it is set.
            template: further arguments of the chat template, such as `tools`.

        Raises ModelError for an unknown adapter, and for a prompt that does not fit.
        """
        from jinja2 import TemplateError

        from hf_rlhf.evaluation.generation import generate
        from hf_rlhf.models import prompt_ids

        own = (self.record.config.get("chat_template_kwargs") if self.record else None) or {}
        try:
            (ids,) = prompt_ids(self.tokenizer, [prompt], {**own, **(template or {})})
        except TemplateError as error:
            raise ModelError(f"the chat template refuses these messages: {error}") from error
        if self.positions is not None and (most := min(most, self.positions - len(ids))) < 1:
            raise ModelError(f"{len(ids)} tokens fill the model's {self.positions} positions.")
        seed = random.getrandbits(63) if seed is None else seed
        with self._lock:
            key, model = self.load(name), self.model
            if key is not None:
                model.set_adapter(key)
            is_base = key is None and hasattr(model, "disable_adapter")
            with model.disable_adapter() if is_base else nullcontext():
                inner = model.get_base_model() if hasattr(model, "peft_config") else model
                (completion,) = generate(
                    *(inner, self.tokenizer, [ids], sampling, most),
                    seeds=[seed],
                    on_text=on_text,
                    stop=stop,
                )
        return len(ids), completion


def _beside(run: Path) -> dict[str, str]:
    """Return the adapters in a run folder beside its own: of its phases and checkpoints."""
    from hf_rlhf.storage.checkpoints import step_of, valid_checkpoints

    phases = {path.parent.name: str(path) for path in sorted(run.glob("phases/*/adapter"))}
    steps = valid_checkpoints(run / "checkpoints") if (run / "checkpoints").is_dir() else []
    return {**phases, **{f"step-{step_of(path)}": str(path) for path in steps}}
