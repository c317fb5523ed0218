"""A completion for the card: the output of its loading snippet with the trained weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.data.messages import prompt_in, text_of
from hf_rlhf.evaluation.saved_models import SavedModel
from hf_rlhf.evaluation.scoring import held_out_rows
from hf_rlhf.models.lengths import completion_length, prompt_ids
from hf_rlhf.storage.record_schema import Generation

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

MAX_PROMPT = 2_000
"""Characters; the card shows the prompt twice."""
MAX_TOKENS = 256


def greedy_example(run: "Run", model: Path) -> Generation | None:
    """Return a greedy completion of the first held-out prompt of at most MAX_PROMPT characters.

    It uses only the calls of the card's snippet, so that readers can reproduce it. None for a model
    that generates no text, without samples for the card, or if no prompt is short enough.
    """
    import torch

    spec = run.spec.evaluation
    if spec is None or not spec.samples or not run.writes_text:
        return None
    prompts = (prompt_in(row) for row in held_out_rows(run))
    prompt = next((each for each in prompts if _is_short_text(each)), None)
    if prompt is None:
        return None
    length = min(spec.max_new_tokens or completion_length(run), MAX_TOKENS)
    options = dict(getattr(run.training, "chat_template_kwargs", None) or {})
    device = str(run.training.device)
    code = bool(getattr(run.training, "trust_remote_code", False))

    saved = SavedModel(str(model), str(model))
    tokenizer = saved.tokenizer(trust_remote_code=code)
    inputs = torch.tensor(prompt_ids(tokenizer, [prompt], options), device=device)
    with saved.load(device, dtype="auto", trust_remote_code=code) as policy:
        tokens = policy.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=length,
            synced_gpus=False,
        )
        dtype = str(policy.dtype).removeprefix("torch.")
        del policy
    return Generation(
        prompt=prompt,
        chat_template_kwargs=options,
        max_new_tokens=length,
        completion=tokenizer.decode(tokens[0, inputs.shape[1] :], skip_special_tokens=True),
        dtype=dtype,
        device=device,
    )


def _is_short_text(prompt: Any) -> bool:
    """Return whether a prompt fits in the card's snippet: no tools, no pictures."""
    turns = [] if isinstance(prompt, str) else prompt or ()
    plain = all(
        turn.keys() == {"role", "content"} and isinstance(turn["content"], str) for turn in turns
    )
    return plain and 0 < len(text_of(prompt or "")) <= MAX_PROMPT
