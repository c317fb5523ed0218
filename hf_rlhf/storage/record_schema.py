"""The sections of a run's record: one definition of each field of `run.json`."""

from typing import Literal

from pydantic import Field

from hf_rlhf.storage.monitor_schema import MonitorSection
from hf_rlhf.storage.section import Json, Number, Section


class Provenance(Section):
    """A component's name, and where its code came from."""

    name: str | None = None
    package: str | None = None
    """The distribution that offers it."""
    version: str | None = None
    target: str | None = None
    """`module:attribute`."""


class Component(Provenance):
    """One component that the run resolved, of whatever kind."""

    kind: str | None = None
    label: str | None = None
    arguments: dict[str, Json] | None = None
    source: str | None = None
    """Of a component that no package offers: the text of its file, or of the Python object."""
    sha256: str | None = None
    """Of the source; of a tokenizer that is set apart, of its tokens, rules and template."""
    code: dict[str, str] = {}
    """Digests of the user's own code in it: of functions and classes by name, and of files."""
    reads: dict[str, Json] = {}
    """Values that this code takes from outside itself; a digest where JSON would not hold it."""
    not_compared: list[str] = []
    """Names of the values without a digest, for example an open connection."""


class MethodSection(Section):
    """The trainer's method (`hf_rlhf.contracts.Method`)."""

    name: str | None = None
    tags: list[str] = []
    citations: list[str] = []
    summary: str | None = None
    step: str | None = None
    """The unit of training, such as `optimizer step`."""
    facts: dict[str, str] = {}
    """Lines of the trainer's for the card's training setup, as Markdown by title."""


class ConfigFile(Section):
    """The run file as it was read."""

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
    """The class of transformers that loads it."""
    module: str | None = None
    """What must be imported before transformers knows the model, which it does not have itself."""
    auto_processor: str | None = None
    """The class that loads what turns rows into its inputs; null for AutoTokenizer."""
    task: str | None = None
    """In the Hub's words (`pipeline_tag`)."""
    num_labels: int | None = None
    """Classes of a classifier."""
    continues: dict[str, Json] | None = None
    """The adapter that training began from: `adapter`, `revision`, `sha256` of its weights."""
    saved: list[str] | None = None
    """Which of `adapter` and `merged` the run folder holds."""
    identity: dict[str, Json] | None = None
    """Of the base, by `hf_rlhf.models.fingerprint`."""
    parameters: int | None = None
    """Of the model that is published."""
    trainable_parameters: int | None = None
    dtype: str | None = None
    adapter: dict[str, Json] | None = None
    """The LoRA configuration; null for full fine-tuning."""
    license: str | None = None
    """Of the base, as its card has it; `license_name` and `license_link` likewise."""
    license_name: str | None = None
    license_link: str | None = None
    lineage: list[str] = []
    """From the oldest ancestor to the base."""


class DataSection(Section):
    """The training data."""

    adapter: str | None = None
    """The dataset component that read it."""
    arguments: dict[str, Json] = {}
    splits: dict[str, int] = {}
    """Rows of each split."""
    digests: dict[str, str] = {}
    """Of each split's rows (`hf_rlhf.data.arrow_rows.rows_digest`)."""
    conversational: bool | None = None
    """Whether prompts are messages, for the chat template, or plain text."""
    report: dict[str, Json] = {}
    """From the adapter; for Hub data with `source` and `commit`."""
    used: dict[str, Json] = {}
    """By split, the rows that the trainer keeps, drops and cuts, by reason."""


class RewardPart(Section):
    """One reward of the sum."""

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
        """The formula of what the weight multiplies, such as `clip(sigmoid(bt), 0.1, 0.9)`."""
        transform, term = self.transform or {}, self.label or ""
        if zscore := transform.get("zscore"):
            term = "zscore({}, {:g}, {:g})".format(term, *zscore)
        if temperature := transform.get("sigmoid"):
            scaled = term if temperature == 1 else f"{term} / {temperature:g}"
            term = f"sigmoid({scaled})"
        return "clip({}, {:g}, {:g})".format(term, *self.clip) if self.clip else term


class GatePart(Section):
    """One gate."""

    label: str | None = None
    name: str | None = None
    threshold: Number | None = None
    """It passes from this score on."""
    arguments: dict[str, Json] | None = None
    doc: str | None = None


class RewardSection(Section):
    """The composed reward."""

    trains: bool | None = None
    """Whether training used it, or only the evaluation."""
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
"""Prefix of our metrics of validation rows, after `eval_`, apart from those that TRL logs."""


class ValidationSection(Section):
    """Evaluations during training, and what they decided."""

    split: str | None = None
    first_row: int | None = None
    """The number of the first of the `rows` in the split."""
    rows: int | None = None
    separate: bool | None = None
    """Whether none of these rows is among those of the results."""
    metric: str | None = None
    """By which the best step was chosen."""
    greater_is_better: bool | None = None
    best: Number | None = None
    """The metric at `best_step`."""
    best_step: int | None = None
    restored: bool = False
    """Whether the weights of `best_step` are the ones that were saved."""
    patience: int | None = None
    """Evaluations without an improvement of more than `threshold` after which training stops."""
    threshold: Number | None = None
    stopped_early: bool = False


class TrainingSection(Section):
    """How far training got."""

    steps: int | None = None
    planned_steps: int | None = None
    epochs: Number | None = None
    seconds: Number | None = None
    """Over all sessions."""
    world_size: int | None = None
    """Processes."""
    distributed: Json = None
    """`type`, and DeepSpeed's `zero_stage` or FSDP's `fsdp_version`."""
    final: dict[str, Json] = {}
    """The last entry of the history with a loss."""
    history: list[dict[str, Json]] = []
    """One entry per logged step: `step` and metrics."""
    report: dict[str, Json] = {}
    """The trainer's reports beside its log, by title."""
    validation: ValidationSection | None = None
    monitor: MonitorSection | None = None
    peak_memory: dict[str, Json] | None = None
    """`bytes`, and `of` what. `predicted`: what was counted before it began; `before`: RSS then."""


class Session(Section):
    """One start of the command."""

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
    """How completions were sampled; empty where none were."""
    before: dict[str, Estimate] | None = None
    """By metric, before training."""
    after: dict[str, Estimate] | None = None
    difference: dict[str, Estimate] | None = None
    """Paired: after minus before, row by row."""
    method: str | None = None
    """How the intervals were computed."""
    metrics: dict[str, str] = {}
    """Metric -> what it measures."""
    benchmarks: list[dict[str, Json]] = []
    """The name of each metric of a benchmark as `metric`; for a leaderboard of the Hub with the
    fields of `huggingface_hub.EvalResultEntry`."""

    def estimate(self, stage: Literal["before", "after", "difference"], metric: str) -> Estimate:
        """Return an estimate; one without values where there is none."""
        return (getattr(self, stage) or {}).get(metric) or Estimate()


class Sample(Section):
    """One completion."""

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
    """Where an installed package came from."""

    kind: Literal["index", "archive", "repository", "folder", "editable"] | None = None
    """`folder`: copied when it was installed; `editable`: read from where it is edited."""
    url: str | None = None
    """As pip takes it; null for what lies on one machine only."""
    subdirectory: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    """Whether the package's own files differ from the commit."""
    sha256: str | None = None
    """Of an archive."""

    def requirement(self, name: str, version: str) -> str | None:
        """Return what pip installs this package from; None where that lies on one machine only."""
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
    """Of hf-rlhf and of every installed plugin, by package."""


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
