"""What this project claims to be at least: ours / the alternative, of each benchmark.

Here and nowhere else: a script prints whether its targets are met, and `python benchmarks` whether
all are. A target is a limit of the ratio of medians: at most, or at least where more is better.
"""

import re

CLAIMS: dict[str, dict[str, float]] = {
    "startup": {
        "hf-rlhf --help / trl --help": 0.75,
        "hf-rlhf list / trl --help": 1.0,
        "hf-rlhf describe refiner_grpo / trl grpo --help": 0.15,
    },
    "short_run": {"(sft|dpo|grpo) / .*": 1.1},
    "grpo_step": {"step(, processor time)? / .*": 1.03},
    "classic_step": {"(sft|reward|dpo|grpo) step(, processor time)? / .*": 1.03},
    "ppo_against_trl": {
        "completions per second / .*": 1.5,
        "memory beside imports / .*": 0.5,
    },
    "shared_prompt": {r".*768 \+ 128, G 8.*, processor time / .*": 1 / 3},
    "judge": {".* / the bound": 0.95},
    "merge": {"peak memory beyond imports / peft": 0.2, "time / peft, flushed to disk": 1.2},
    "citations": {"answers / BeautifulSoup": 1.0, ".* kB / .*": 1.5},
    "push": {"(xet|lfs): seconds / .*": 1.5, "(xet|lfs): commits / .*": 1.0},
    "reward_ensemble": {"scoring / one mixed pass": 1.0},
    "traces": {".*: processor time of .* / .*": 3, ".*: peak memory of .* / .*": 3.5},
}
"""Script -> pattern of `quantity / alternative` -> target."""


def target_of(script: str, what: str, against: str) -> float | None:
    """Return the target of a comparison; None where nothing is claimed of it."""
    claims = CLAIMS.get(script, {})
    return next((claims[each] for each in claims if matches(each, what, against)), None)


def matches(claim: str, what: str, against: str) -> bool:
    """Return whether a claim is about a comparison."""
    return re.fullmatch(claim, f"{what} / {against}") is not None
