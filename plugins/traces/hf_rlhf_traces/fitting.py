"""Whether a store has held-out samples short enough to be measured in training."""

from collections.abc import Sequence
from typing import Any

from hf_rlhf_traces.dataset import traces
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.train_command import STRATEGIES, run_values, train_parser


def without_held_out(store: Store, options: Sequence[str]) -> list[str]:
    """Return which datasets have no validation sample that fits, as `train` would be called.

    Raises DataError where not even a training sample fits.
    """
    from hf_rlhf.run import load_tokenizer, resolve_model_path

    chosen, overrides = train_parser().parse_known_args([str(store.folder), *options])
    values = run_values(store, chosen)
    most = _given(overrides, "--dataset.max_tokens") or values["dataset"]["max_tokens"]
    model = _given(overrides, "--model_name_or_path") or values["model_name_or_path"]
    tokenizer = load_tokenizer(resolve_model_path(str(model)), None)
    found = []
    for form in STRATEGIES[chosen.strategy]:
        shape: Any = {"form": form, "max_tokens": int(most)}
        made = traces(str(store.folder), tokenizer=tokenizer, **shape).dataset
        if "test" not in made:
            found.append(form)
    return found


def _given(words: Sequence[str], name: str) -> str | None:
    """Return what an option was set to, as `NAME VALUE` or `NAME=VALUE`; None if it was not."""
    for at, word in enumerate(words):
        key, equal, value = word.partition("=")
        if key == name:
            return value if equal else words[at + 1]
    return None
