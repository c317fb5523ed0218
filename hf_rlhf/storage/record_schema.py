"""Sections of a run's record: the definition of each field of `run.json`."""

from typing import Literal

from pydantic import Field

from hf_rlhf.storage.monitor_schema import MonitorSection
from hf_rlhf.storage.section import Json, Number, Section


class Provenance(Section):
    """A component's name and the origin of its code."""

    name: str | None = None
    package: str | None = None
    """The distribution that offers it."""
    version: str | None = None
    target: str | None = None
    """`module:attribute`."""


class Component(Provenance):
    """A resolved component of any kind."""

    kind: str | None = None
    label: str | None = None
    arguments: dict[str, Json] | None = None
    source: str | None = None
    """Source of a component outside of packages: its file, or the Python object's source."""
    sha256: str | None = None
    """Digest of the source; for a separate tokenizer, of its tokens, rules and template."""
    code: dict[str, str] = {}
    """Digests of the user's own files, and of the object with the values that it uses."""
    not_compared: list[str] = []
    """Types of values without a digest, such as an open connection."""


class MethodSection(Section):
    """The trainer's method (`hf_rlhf.contracts.Method`)."""

    name: str | None = None
    tags: list[str] = []
    citations: list[str] = []
    summary: str | None = None
    step: str | None = None
    """The unit of training, such as `optimizer step`."""
    facts: dict[str, str] = {}
    """The trainer's lines for the card's training setup: title -> Markdown."""


class ConfigFile(Section):
    """The run file as read."""

    name: str | None = None
    sha256: str | None = None


class ModelSection(Section):
    """The trained model and its base."""

    base: str | None = None
    """As in the run file: a Hub id, a folder, or package://PACKAGE/FOLDER."""
    base_is_hub_id: bool | None = None
    revision: str | None = None
    """The commit or branch of the base on the Hub."""
    class_name: str | None = Field(
        default=None, validation_alias="class", serialization_alias="class"
    )
    """The architecture that is trained, such as `Qwen3ForCausalLM`."""
    auto_class: str | None = None
    """The transformers class that loads it."""
    module: str | None = None
    """The module to import first, if transformers itself does not have the model."""
    auto_processor: str | None = None
    """The class that loads its processor; null for AutoTokenizer."""
    task: str | None = None
    """The Hub's `pipeline_tag`."""
    num_labels: int | None = None
    """Classes of a classifier."""
    continues: dict[str, Json] | None = None
    """The adapter that training started from: `adapter`, `revision`, `sha256` of its weights."""
    saved: list[str] | None = None
    """Which of `adapter` and `merged` the run folder holds."""
    identity: dict[str, Json] | None = None
    """Identity of the base, by `hf_rlhf.models.fingerprint`."""
    parameters: int | None = None
    """Number of parameters of the published model."""
    trainable_parameters: int | None = None
    dtype: str | None = None
    adapter: dict[str, Json] | None = None
    """The LoRA configuration; null for full fine-tuning."""
    license: str | None = None
    """Licence on the base's card; `license_name` and `license_link` likewise."""
    license_name: str | None = None
    license_link: str | None = None
    lineage: list[str] = []
    """Models from the oldest ancestor to the base."""


class DataSection(Section):
    """The training data."""

    adapter: str | None = None
    """The dataset component that read it."""
    arguments: dict[str, Json] = {}
    splits: dict[str, int] = {}
    """Rows of each split."""
    digests: dict[str, str] = {}
    """Digest of each split's rows (`hf_rlhf.data.arrow_rows.rows_digest`)."""
    conversational: bool | None = None
    """Whether prompts are messages for the chat template, not plain text."""
    report: dict[str, Json] = {}
    """The adapter's report; for Hub data with `source` and `commit`."""
    used: dict[str, Json] = {}
    """Rows that the trainer uses, drops and cuts by reason, for each split."""


class RewardPart(Section):
    """A reward of the sum."""

    label: str | None = None
    name: str | None = None
    weight: Number | None = None
    on_none: str | None = None
    clip: list[Number] | None = None
    """(low, high) of the score before weighting."""
    transform: dict[str, Json] | None = None
    """`zscore` and `sigmoid` of the score before clipping."""
    arguments: dict[str, Json] | None = None
    doc: str | None = None
    """The first paragraph of its docstring."""

    @property
    def term(self) -> str:
        """Return the weighted term as a formula, such as `clip(sigmoid(bt), 0.1, 0.9)`."""
        transform, term = self.transform or {}, self.label or ""
        if zscore := transform.get("zscore"):
            term = "zscore({}, {:g}, {:g})".format(term, *zscore)
        if temperature := transform.get("sigmoid"):
            scaled = term if temperature == 1 else f"{term} / {temperature:g}"
            term = f"sigmoid({scaled})"
        return "clip({}, {:g}, {:g})".format(term, *self.clip) if self.clip else term


class GatePart(Section):
    """A gate."""

    label: str | None = None
    name: str | None = None
    threshold: Number | None = None
    """The lowest score that passes."""
    arguments: dict[str, Json] | None = None
    doc: str | None = None


class RewardSection(Section):
    """The composed reward."""

    trains: bool | None = None
    """Whether training used it, not only the evaluation."""
    rewards: list[RewardPart] = []
    gates: list[GatePart] = []
    judges: list[dict[str, Json]] = []
    """Each with its label, name, description, and `usage` totals."""

    def labels(self) -> list[str]:
        """Return the labels of rewards, then of gates."""
        return [
            *(part.label or "" for part in self.rewards),
            *(gate.label or "" for gate in self.gates),
        ]


HELD_OUT = "held_out/"
"""Prefix (after `eval_`) of our validation metrics, apart from TRL's."""


class ValidationSection(Section):
    """Evaluations during training and their consequences."""

    split: str | None = None
    first_row: int | None = None
    """Index of the first of the `rows` in the split."""
    rows: int | None = None
    separate: bool | None = None
    """Whether these rows are disjoint from the rows of the results."""
    metric: str | None = None
    """The metric that chose the best step."""
    greater_is_better: bool | None = None
    best: Number | None = None
    """The metric at `best_step`."""
    best_step: int | None = None
    restored: bool = False
    """Whether the weights of `best_step` were saved."""
    patience: int | None = None
    """Evaluations without an improvement of more than `threshold` after which training stops."""
    threshold: Number | None = None
    stopped_early: bool = False


class TrainingSection(Section):
    """The progress of training."""

    steps: int | None = None
    planned_steps: int | None = None
    epochs: Number | None = None
    seconds: Number | None = None
    """Training time over all sessions."""
    world_size: int | None = None
    """Number of processes."""
    distributed: Json = None
    """`type`, and DeepSpeed's `zero_stage` or FSDP's `fsdp_version`."""
    final: dict[str, Json] = {}
    """The last entry of the history with a loss."""
    history: list[dict[str, Json]] = []
    """An entry per logged step: `step` and metrics."""
    report: dict[str, Json] = {}
    """The trainer's additional reports, by title."""
    validation: ValidationSection | None = None
    monitor: MonitorSection | None = None
    peak_memory: dict[str, Json] | None = None
    """`bytes`, and `of` what. `predicted`: count before the start; `before`: RSS at the start."""


class Session(Section):
    """A start of the command."""

    started: str | None = None
    ended: str | None = None
    status: Literal["running", "finished", "interrupted", "failed", "killed"] | None = None
    from_step: int | None = None
    to_step: int | None = None
    changed: list[str] = []
    """Differences of the environment from the first session's: `field: then -> now`."""


class Estimate(Section):
    """A mean over `n` rows with its 95% interval."""

    mean: Number | None = None
    low: Number | None = None
    high: Number | None = None
    n: int | None = None


class EvaluationSection(Section):
    """Held-out results."""

    split: str | None = None
    rows: int | None = None
    sampling: dict[str, Json] = {}
    """Sampling settings; empty without completions."""
    before: dict[str, Estimate] | None = None
    """Estimates before training, by metric."""
    after: dict[str, Estimate] | None = None
    difference: dict[str, Estimate] | None = None
    """Paired differences: after minus before, row by row."""
    method: str | None = None
    """The method of the intervals."""
    metrics: dict[str, str] = {}
    """Metric -> description."""
    benchmarks: list[dict[str, Json]] = []
    """Benchmark metrics, named in `metric`; for a Hub leaderboard with the fields of
    `huggingface_hub.EvalResultEntry`."""

    def estimate(self, stage: Literal["before", "after", "difference"], metric: str) -> Estimate:
        """Return the estimate of a metric, or an empty estimate."""
        return (getattr(self, stage) or {}).get(metric) or Estimate()


class Sample(Section):
    """A completion."""

    stage: str | None = None
    """`before`, `train` or `after`."""
    step: int | None = None
    prompt: str | None = None
    completion: str | None = None
    reward: Number | None = None
    components: dict[str, Number | None] | None = None
    """Scores by label."""
    truncated: bool | None = None
    """Whether it was cut at the token limit; None if unknown."""


class Generation(Section):
    """A greedy completion of a held-out prompt after training, by the card's own snippet."""

    prompt: Json = None
    """Text, or chat messages."""
    chat_template_kwargs: dict[str, Json] = {}
    max_new_tokens: int | None = None
    completion: str | None = None
    """Without special tokens."""
    dtype: str | None = None
    device: str | None = None


class Picture(Section):
    """A picture beside the card, by file name."""

    file: str = ""
    alt: str = ""


class Source(Section):
    """The origin of an installed package."""

    kind: Literal["index", "archive", "repository", "folder", "editable"] | None = None
    """`folder`: copied when it was installed; `editable`: read from where it is edited."""
    url: str | None = None
    """URL for pip; null for a local package."""
    subdirectory: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    """Whether the package's own files differ from the commit."""
    sha256: str | None = None
    """Digest of an archive."""

    def requirement(self, name: str, version: str) -> str | None:
        """Return the pip requirement of this package; None for a local package."""
        if self.kind == "index":
            return f"{name}=={version}"
        if self.url is None:
            return None
        if self.kind == "archive":
            return f"{name} @ {self.url}" + (f"#sha256={self.sha256}" if self.sha256 else "")
        ending = f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        return f"{name} @ {self.url}@{self.commit}{ending}"

    def text(self) -> str:
        """Return the source in words."""
        how = {
            "index": "by name from a package index (which one is not recorded)",
            "archive": "an archive",
            "repository": "a repository",
            "folder": "a folder, copied when it was installed",
            "editable": "a folder (editable)",
        }.get(str(self.kind), "not recorded")
        commit = f"commit {self.commit}" if self.commit else ""
        dirty = "with uncommitted changes" if self.dirty else ""
        return ", ".join(filter(None, (how, self.url, commit, dirty)))


class Environment(Section):
    """The machine and the software."""

    python: str | None = None
    platform: str | None = None
    packages: dict[str, str] = {}
    cpu: str | None = None
    cpu_count: int | None = None
    gpu: list[str] = []
    """One name per GPU."""
    memory_gb: Number | None = None
    """In GiB."""
    sources: dict[str, Source] = {}
    """Sources of hf-rlhf and of every installed plugin, by package."""


class Author(Section):
    """Facts that only the author knows: the `card` section of the run file."""

    title: str | None = None
    intended_use: str | None = None
    known_notes: list[str] = []
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    tags: list[str] = []
    language: str | list[str] | None = None
    sections: dict[str, str] = {}
    """Heading -> Markdown."""
    contact: str | None = None
    citation: str | None = None
