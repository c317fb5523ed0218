"""Whether any held-out sample is short enough to be measured during a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.dataset import rendered
from hf_rlhf_traces.rows import FORMS, Form, conversation
from hf_rlhf_traces.shards import dataset_rows

if TYPE_CHECKING:
    from hf_rlhf.config import RunFile

WITHOUT_PHASES = ""
"""The name of the only phase of a run without phases."""


def without_measurement(file: "RunFile", options: Sequence[str]) -> dict[str, str]:
    """Return, for each phase without a sample to measure, the option to turn its evaluation off.

    The value is the reason. `options`: as typed; `file` has them already. Raises ConfigError if
    one of them asks for an evaluation of such a phase.
    """
    from hf_rlhf.models import load_tokenizer, resolve_model_path

    tokenizer, counted = None, dict[tuple[Form, int], str]()
    lacking: dict[str, str] = {}
    for name, values in _phases(file.values).items():
        data = values["dataset"]
        form: Form = data.get("form") or "multiturn"
        most = data.get("max_tokens")
        if values.get("evaluation") is None or most is None or data.get("name") != "traces":
            continue
        if tokenizer is None:
            path = resolve_model_path(str(values["model_name_or_path"]))
            kwargs = {"revision": values["model_revision"] or "main"}
            tokenizer = load_tokenizer(path, None, values.get("chat_template"), **kwargs)
        if (form, most) not in counted:
            counted[form, most] = _why_none(Path(data["path"]), form, tokenizer, int(most))
        if why := counted[form, most]:
            option = f"--phases.{name}.evaluation" if name else "--evaluation"
            lacking[option] = f"{why}{f', in phase {name}' * bool(name)}"
    asked = tuple({"--evaluation", *lacking})
    if lacking and any(word.partition("=")[0].startswith(asked) for word in options):
        cure = "Turn this evaluation off, {} null, or allow longer samples: --max_length N."
        problems = [
            Problem(f"{option} (command line)", f"{why}.", cure.format(option))
            for option, why in lacking.items()
        ]
        raise ConfigError(problems)
    return lacking


def _phases(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of each phase, or those of a run that has none."""
    common = {"model_revision": None, **values}
    phases = [phase for phase in values.get("phases") or () if phase is not None]
    if not phases:
        return {WITHOUT_PHASES: common}
    dataset = values["dataset"]
    return {
        phase["name"]: {**common, **phase, "dataset": {**dataset, **(phase.get("dataset") or {})}}
        for phase in phases
    }


def _why_none(folder: Path, form: Form, tokenizer: Any, most: int) -> str:
    """Return why no held-out sample of a form may be measured; "" if there is one."""
    counts: list[int] = []
    for dataset in FORMS[form]:
        for row in dataset_rows(folder / "datasets" / dataset, "validation"):
            prompt, completion = conversation(dataset, row)
            text = rendered(tokenizer, [*prompt, *completion])
            counts.append(len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids))
            if counts[-1] <= most:
                return ""
    if not counts:
        return f"no sample of {form} is held out"
    return (
        f"none of the {len(counts):,} held-out samples of {form} is short enough to be measured "
        f"(the shortest has {min(counts):,} tokens, max_length is {most:,})"
    )
