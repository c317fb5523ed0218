"""An evaluation resolved: models, tokenizers, rows and rewards, checked before any weights load."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hf_rlhf.config import EvaluationSpec, RunFile
from hf_rlhf.errors import ConfigError, JudgeError, ModelError, Problem
from hf_rlhf.evaluation import fingerprint, prompt_ids
from hf_rlhf.runs import Scoring, resolve_scoring
from hf_rlhf_classic.evaluation.checkpoints import Checkpoint, resolve_all
from hf_rlhf_classic.evaluation.spec import (
    SECTION,
    Compare,
    EvalSpec,
    Options,
    read_compare,
    read_spec,
)

_DEFAULT_LENGTH = 256


@dataclass(frozen=True)
class Plan:
    """Everything that an evaluation needs to begin."""

    spec: EvalSpec
    file: RunFile
    names: Mapping[str, Sequence[Checkpoint]]
    tokenizers: Mapping[str, Any]
    """By the checkpoint's label."""
    scoring: Scoring
    comparisons: Sequence[Compare]
    max_new_tokens: int

    @property
    def sampling(self) -> EvaluationSpec:
        """Return the `evaluation:` section: how many rows, and how to sample."""
        return self.scoring.spec.evaluation or EvaluationSpec()

    @property
    def data_name(self) -> str:
        """Return the dataset adapter's name, without its package."""
        return self.scoring.spec.dataset.name.rpartition("/")[2]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, in order."""
        return [checkpoint for some in self.names.values() for checkpoint in some]

    @cached_property
    def rows(self) -> Any:
        """Return the held-out rows that are answered: a `datasets.Dataset`."""
        split = self.scoring.dataset[self.sampling.split]
        count = len(split) if self.sampling.rows is None else min(self.sampling.rows, len(split))
        return split.select(range(count))

    @property
    def template(self) -> dict[str, Any]:
        """Return what the chat template is given."""
        return self.spec.chat_template_kwargs or {}

    def prompts(self, checkpoint: Checkpoint) -> list[list[int]]:
        """Return the prompts as the checkpoint's own tokenizer and template have them."""
        tokenizer = self.tokenizers[checkpoint.label]
        return prompt_ids(tokenizer, self.rows["prompt"][:], self.template)

    def partner(self, name: str | None, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the checkpoint of `name` that `checkpoint` is compared with."""
        some = self.names.get(name or "")
        if not some or checkpoint.name == name:
            return None
        return some[0] if len(some) == 1 else some[checkpoint.number]

    def reference(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return from which checkpoint KL is measured; None where it is not."""
        if self.sampling.temperature == 0:
            return None
        other = self.partner(self.spec.reference, checkpoint)
        return other if other and self._same_tokens(checkpoint, other) else None

    def _same_tokens(self, checkpoint: Checkpoint, other: Checkpoint) -> bool:
        mine, theirs = self.tokenizers[checkpoint.label], self.tokenizers[other.label]
        return bool(mine.get_vocab() == theirs.get_vocab())

    def identity(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return what makes a checkpoint's completions what they are."""
        sampling = self.sampling
        keys = ("split", "batch_size", "temperature", "top_p", "seed", "completions_per_prompt")
        return {
            **checkpoint.saved.identity,
            # As tokens: another chat template, or tokenizer, asks another question.
            "prompts": fingerprint(self.prompts(checkpoint)),
            "sampling": {key: getattr(sampling, key) for key in keys},
            "max_new_tokens": self.max_new_tokens,
            "dtype": self.spec.dtype,
        }

    def notes(self) -> list[str]:
        """Return what was left out, and why, and what the estimates are worth."""
        sampling, reference = self.sampling, self.spec.reference
        notes: list[str] = []
        if reference == "none" or len(self.checkpoints) == 1:
            return notes
        if sampling.temperature == 0:
            notes.append(
                "KL left out: greedy completions are no samples of the policy. Set "
                "`evaluation.temperature` above 0."
            )
        elif sampling.top_p < 1:
            notes.append(
                f"KL is of the distributions before top-p {sampling.top_p:g} cut their tails, "
                "estimated on completions drawn after it, and so biased; "
                "`evaluation.top_p: 1` makes it exact in the mean."
            )
        for checkpoint in self.checkpoints:
            other = self.partner(reference, checkpoint)
            if sampling.temperature and other and not self._same_tokens(checkpoint, other):
                notes.append(
                    f"KL of {checkpoint.label} from {other.label} left out: their tokenizers "
                    "differ, so their tokens cannot be compared."
                )
        return notes


def make_plan(file: RunFile, options: Options) -> Plan:
    """Resolve and check an evaluation. Raises ConfigError with everything that is wrong."""
    spec, problems = read_spec(file, options)
    names, more = resolve_all(spec)
    problems += more
    tokenizers, more = _tokenizers(names, spec)
    problems += more
    first = next(iter(tokenizers.values()), None)
    try:
        scoring = resolve_scoring(file, first, plugin=SECTION)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    split = (scoring.spec.evaluation or EvaluationSpec()).split
    rows = scoring.dataset.get(split, scoring.dataset["train"])
    comparisons, more = read_compare(spec, scoring.spec, rows.column_names)
    problems += more
    length = file.values.get("max_completion_length") or _DEFAULT_LENGTH
    if (evaluation := scoring.spec.evaluation) and evaluation.max_new_tokens:
        length = evaluation.max_new_tokens
    plan = Plan(spec, file, names, tokenizers, scoring, comparisons, length)
    problems += _rows(plan) or [*_lengths(plan), *_judges(plan)]
    if problems:
        raise ConfigError(problems)
    return plan


def _tokenizers(
    names: Mapping[str, Sequence[Checkpoint]], spec: EvalSpec
) -> tuple[dict[str, Any], list[Problem]]:
    tokenizers, problems = {}, []
    for name, some in names.items():
        for checkpoint in some:
            try:
                tokenizers[checkpoint.label] = checkpoint.saved.tokenizer(
                    trust_remote_code=bool(spec.trust_remote_code)
                )
            except ModelError as error:
                problems.append(Problem(f"{SECTION}.models.{name}", str(error)))
    return tokenizers, problems


def _rows(plan: Plan) -> list[Problem]:
    split, have = plan.sampling.split, plan.scoring.dataset
    if split not in have or len(have[split]) == 0:
        listed = ", ".join(f"{name} ({len(rows)} rows)" for name, rows in have.items())
        what = f"there are no rows in the split {split!r}. The dataset gave: {listed}."
        return [Problem("evaluation", what, "Name another: `--evaluation.split NAME`.")]
    columns = set(have[split].column_names)
    if "prompt" not in columns:
        what = f"the rows have no `prompt`. Their columns: {', '.join(sorted(columns))}."
        fix = "Use an adapter or a `form` that gives prompts."
        return [Problem(plan.file.where_key("dataset"), what, fix)]
    reward = plan.scoring.reward
    return [
        Problem(
            plan.file.where_key("rewards"),
            f"{part.label!r} needs {', '.join(sorted(part.needs() - columns))}, which the split "
            f"{split!r} lacks.",
            f"Its columns: {', '.join(sorted(columns))}.",
        )
        for part in ((*reward.rewards, *reward.gates) if reward else ())
        if part.needs() - columns
    ]


def _lengths(plan: Plan) -> list[Problem]:
    """Past the model's positions what is generated is meaningless, and nothing says so."""
    problems = []
    conversational = not isinstance(plan.rows[0]["prompt"], str)
    for checkpoint in plan.checkpoints:
        if checkpoint.label not in plan.tokenizers:
            continue
        where = f"{SECTION}.models.{checkpoint.name}"
        if conversational and not plan.tokenizers[checkpoint.label].chat_template:
            what = "its tokenizer has no chat template, and the prompts are conversations."
            problems.append(Problem(where, what, "Save a chat_template with the tokenizer."))
            continue
        try:
            room = checkpoint.saved.positions(trust_remote_code=bool(plan.spec.trust_remote_code))
        except ModelError as error:
            problems.append(Problem(where, str(error)))
            continue
        longest = max(map(len, plan.prompts(checkpoint)))
        if room and longest + plan.max_new_tokens > room:
            what = f"a prompt of {longest} tokens and {plan.max_new_tokens} new ones are over its "
            what += f"{room} positions."
            fix = "Lower `evaluation.max_new_tokens`, or cut the prompts."
            problems.append(Problem(where, what, fix))
    return problems


def _judges(plan: Plan) -> list[Problem]:
    """Ask each judge for a sign of life before hours of generating."""
    problems = []
    for label, judge in plan.scoring.judges.items():
        try:
            asyncio.run(judge.ping())
        except JudgeError as error:
            problems.append(Problem(plan.file.where(("judges", label)), str(error)))
    return problems
