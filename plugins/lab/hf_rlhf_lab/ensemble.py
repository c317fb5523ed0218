"""Combine several reward models in a reward for what they agree on: `reward_ensemble`.

A policy that over-optimises a reward model finds texts that only this model overrates; models
trained with other seeds or pairs score them differently. The reward is therefore the members' mean
minus `penalty` times their standard deviation, or the lowest score (Coste et al. 2023, "Reward
Model Ensembles Help Mitigate Overoptimization"; their penalty is the variance, while the standard
deviation has the unit of the scores).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ModelError
from hf_rlhf_classic.scoring import RewardModel


@dataclass
class RewardEnsemble:
    """The mean score of several reward models, less a penalty for their disagreement.

    Takes full `models`, or `adapters` on a `base` that is loaded once.
    """

    models: tuple[str, ...] = ()
    """Reward models: folders, package://PACKAGE/FOLDER or Hub ids."""
    base: str | None = None
    """Base model of `adapters`."""
    adapters: tuple[str, ...] = ()
    """LoRA reward adapters on `base`, each with its score head: folders, runs' folders, Hub ids."""
    revisions: tuple[str | None, ...] = ()
    """Hub revisions of the members, in their order."""
    base_revision: str | None = None
    """Hub revision of `base`."""
    aggregate: Literal["mean", "min"] = "mean"
    """Use the mean of the members' scores minus the penalty, or the lowest score."""
    penalty: float = 0.0
    """Number of standard deviations of the members' scores to subtract from their mean."""
    means: tuple[float, ...] = ()
    """Each member's mean score, subtracted in order: separately trained members differ in location.
    """
    stds: tuple[float, ...] = ()
    """Each member's standard deviation, by which its centred score is divided."""
    batch_size: int = 16
    """Number of texts that a member scores at once."""
    device: str | None = None
    """Device of the members; by default the policy's."""
    dtype: str | None = None
    """Data type of the weights, such as `bfloat16`; by default as saved."""
    max_length: int | None = None
    """Maximum number of tokens of a text, at most the members' positions."""
    too_long: Literal["cut", "abstain", "error"] = "cut"
    """A longer text is truncated at the start, gets no score, or stops the run."""
    members: tuple[RewardModel, ...] = field(init=False, repr=False, compare=False)
    """The members, each usable as a reward."""
    _shares_base: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check everything that can be checked before weights load. Raises ModelError."""
        names = [*self.models, *self.adapters]
        self._check_settings(names)
        self.members = tuple(
            RewardModel(
                model=self.base or name,
                adapter=name if self.base else None,
                revision=self.base_revision if self.base else revision,
                adapter_revision=revision if self.base else None,
                mean=mean or 0.0,
                std=1.0 if std is None else std,
                batch_size=self.batch_size,
                device=self.device,
                dtype=self.dtype,
                max_length=self.max_length,
                too_long=self.too_long,
            )
            for name, revision, mean, std in zip_longest(
                names, self.revisions, self.means, self.stds
            )
        )
        self._check_different(names)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score per completion, None if a member abstains.

        Raises RewardError and ModelError as `reward_model` does.
        """
        if self.base:
            self._share_base()
        scores = [member(prompts, completions, log_metric) for member in self.members]
        rows = [[score for score in row if score is not None] for row in zip(*scores, strict=True)]
        complete = [row for row in rows if len(row) == len(self.members)]
        if log_metric is not None and complete:
            for number, of_member in enumerate(zip(*complete, strict=True), 1):
                log_metric(f"reward_ensemble/member_{number}", fmean(of_member))
            log_metric("reward_ensemble/disagreement", fmean(map(pstdev, complete)))
        return [self._aggregated(row) if len(row) == len(self.members) else None for row in rows]

    def describe(self) -> Mapping[str, Any]:
        """Return every setting, for the record and the card."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def advice(self) -> list[str]:
        """Return what to know about the members before a policy learns from them."""
        return [text for member in self.members for text in member.advice()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shares_base": False}

    def _aggregated(self, row: Sequence[float]) -> float:
        if self.aggregate == "min":
            return min(row)
        return fmean(row) - self.penalty * pstdev(row)

    def _share_base(self) -> None:
        """Load base and adapters once per process, for all members."""
        if self._shares_base:
            return
        model, tokenizer = self.members[0].load(merge=False)
        for number, member in enumerate(self.members):
            name = "default" if number == 0 else f"member_{number}"
            if number:
                model.load_adapter(str(member.locate()[1]), adapter_name=name)
            member.use(_WithAdapter(model, name), tokenizer)
        model.to(model.device).eval()
        self._shares_base = True

    def _check_settings(self, names: Sequence[str]) -> None:
        counts = {len(each) for each in (self.revisions, self.means, self.stds)}
        for broken, text in (
            (
                bool(self.models) == bool(self.adapters) or bool(self.adapters) != bool(self.base),
                "has either `models`, or `adapters` and their `base`.",
            ),
            (len(names) < 2, f"has {len(names)} member. Name at least 2."),
            (
                not math.isfinite(self.penalty) or self.penalty < 0,
                f"penalty is {self.penalty}, which would pay for disagreement. Write 0 or more.",
            ),
            (
                self.aggregate == "min" and self.penalty != 0,
                "the lowest score has no penalty. Remove `penalty`, or write `aggregate: mean`.",
            ),
            (
                counts - {0, len(names)} != set(),
                f"revisions, means and stds are one for each of its {len(names)} members, in "
                "their order.",
            ),
        ):
            if broken:
                raise ModelError(f"reward_ensemble: {text}")

    def _check_different(self, names: Sequence[str]) -> None:
        """Raise ModelError for a duplicate member."""
        sources: set[tuple[str, str | None]] = set()
        for name, member in zip(names, self.members, strict=True):
            path, adapter = member.locate()
            folder = Path(adapter or path)
            source = (
                str(folder.resolve()) if folder.exists() else str(folder),
                member.adapter_revision if adapter else member.revision,
            )
            if source in sources:
                raise ModelError(
                    f"reward_ensemble: {name} is a member twice, which lowers the disagreement "
                    "without another opinion. Name each once."
                )
            sources.add(source)


@dataclass(frozen=True)
class _WithAdapter:
    """A model with several adapters that activates a single adapter."""

    model: Any
    adapter: str

    def __call__(self, **inputs: Any) -> Any:
        self.model.set_adapter(self.adapter)
        return self.model(**inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
