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
    from hf_rlhf.config import RunFile
    from hf_rlhf.models import load_tokenizer, resolve_model_path

    chosen, overrides = train_parser().parse_known_args([str(store.folder), *options])
    values = run_values(store, chosen, overrides)
    asked = RunFile.from_mapping(values).override(overrides).values
    most = asked["dataset"].get("max_tokens")
    if not (most is None or type(most) is int):
        return []  # which training refuses
    tokenizer = load_tokenizer(resolve_model_path(str(asked["model_name_or_path"])), None)
    found = []
    for form in STRATEGIES[chosen.strategy]:
        shape: Any = {"form": form, "max_tokens": most}
        made = traces(str(store.folder), tokenizer=tokenizer, **shape).dataset
        if "test" not in made:
            found.append(form)
    return found
