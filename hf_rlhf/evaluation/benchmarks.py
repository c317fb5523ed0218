"""Standard benchmarks by name: tasks of lm-evaluation-harness (`lm-eval`) on a loaded model.

Tasks, prompts, answers and scores are lm-eval's. Row scores are saved immediately, computed by all
processes, and paired with another model's.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hf_rlhf.config.schema import BenchmarkSpec
from hf_rlhf.data.arrow_rows import rows_digest
from hf_rlhf.errors import ConfigError, Problem, did_you_mean, first_line
from hf_rlhf.evaluation.completions import SavedValues
from hf_rlhf.evaluation.report import Metric
from hf_rlhf.evaluation.results import Evaluation
from hf_rlhf.evaluation.statistics import Interval
from hf_rlhf.evaluation.task import Answers, Candidate, Pass, Task, fill
from hf_rlhf.models.locate import is_hub_id
from hf_rlhf.scores import Score
from hf_rlhf.steps.digests import digest
from hf_rlhf.storage.record import now

_SEED = 1234
"""lm-eval's seed of few-shot examples, from which each batch draws its own."""
_BATCH = 256
"""Rows between two saves, and per share of a process."""
_SHARES = ("acc", "acc_norm", "exact_match")
"""Metrics from 0 to 1 that the Hub's leaderboards list in percent."""
_UNWEIGHTED = SimpleNamespace(weight_by_size=False)
"""Metrics of a group without an aggregate."""


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A benchmark: a task of lm-eval, or a group whose tasks count by their rows."""

    spec: BenchmarkSpec
    name: str
    tasks: Mapping[str, Any]

    @cached_property
    def ids(self) -> list[str]:
        """The rows, as `TASK/INDEX`."""
        return [
            f"{name}/{index}"
            for name, task in self.tasks.items()
            for index in range(min(len(task.eval_docs), self.spec.limit or len(task.eval_docs)))
        ]

    @cached_property
    def metrics(self) -> dict[str, bool]:
        """`TASK/METRIC` -> whether higher is better; only means over rows."""
        from lm_eval.api.metrics import mean

        metrics: dict[str, bool] = {}
        for task in self.tasks.values():
            filters = [each["name"] for each in task.config.filter_list or [{"name": "none"}]]
            better = task.higher_is_better()
            metrics |= {
                self._metric(metric, each): bool(better.get(metric, True))
                for metric, aggregate in task.aggregation().items()
                if aggregate is mean
                for each in filters
            }
        return metrics

    def _metric(self, metric: str, filtered: str) -> str:
        return f"{self.name}/{metric}" + (f"/{filtered}" if filtered != "none" else "")

    @property
    def leaderboard_metric(self) -> str:
        """The metric for the Hub's leaderboard."""
        return f"{self.name}/{self.spec.metric}" if self.spec.metric else next(iter(self.metrics))

    @property
    def dataset_id(self) -> str | None:
        """The leaderboard's dataset on the Hub; None for other data."""
        read = {str(task.config.dataset_path) for task in self.tasks.values()}
        names = [self.spec.dataset_id] if self.spec.dataset_id else sorted(read)
        return names[0] if len(names) == 1 and is_hub_id(names[0]) and "/" in names[0] else None

    def identity(self) -> dict[str, Any]:
        """Return the inputs of the scores besides the weights, as JSON."""
        content = {name: repr(task.dump_config()) for name, task in self.tasks.items()}
        rows = {name: rows_digest(task.eval_docs) for name, task in self.tasks.items()}
        ours = {"dataset_id", "task_id", "metric"}  # without effect on scores
        options = {key: value for key, value in asdict(self.spec).items() if key not in ours}
        return {
            **{"benchmark": options, "tasks": digest(content), "rows": digest(rows)},
            "lm-eval": version("lm-eval"),
        }

    def describe(self) -> str:
        """Return a description of the benchmark, for readers."""
        shots = {task.config.num_fewshot for task in self.tasks.values()}
        form = "chat template" if self.spec.apply_chat_template else "plain prompts"
        rows = f"the first {self.spec.limit} rows" if self.spec.limit else f"{len(self.ids):,} rows"
        return (
            f"{self.name} of lm-eval {version('lm-eval')}, {'/'.join(map(str, sorted(shots)))}-shot"
            f", {form}, {rows}"
        )

    def values(self, folder: Path) -> SavedValues:
        """Return the scores of the rows, saved in `folder`."""
        return SavedValues(folder, "rows", self.ids, _BATCH)

    def score(
        self, tokenizer: Any, batch_size: int, model: Any, ids: Sequence[str]
    ) -> list[dict[str, Score]]:
        """Return the metrics of rows, computed by lm-eval."""
        from lm_eval.evaluator import evaluate
        from lm_eval.models.huggingface import HFLM

        scores: dict[str, dict[str, Score]] = {key: dict.fromkeys(self.metrics) for key in ids}
        logger = logging.getLogger("lm_eval.models.huggingface")
        logger.setLevel(logging.ERROR)  # it warns against launching a loaded model
        lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
        logger.setLevel(logging.NOTSET)
        for name, task in self.tasks.items():
            rows = [int(key.rpartition("/")[2]) for key in ids if key.startswith(f"{name}/")]
            if not rows:
                continue
            # A batch's examples do not depend on earlier batches or processes.
            task.set_fewshot_seed(_SEED + rows[0])
            results = evaluate(
                lm,
                {"tasks": {name: task}},
                samples={name: rows},
                bootstrap_iters=0,
                apply_chat_template=self.spec.apply_chat_template,
                fewshot_as_multiturn=self.spec.apply_chat_template,
                confirm_run_unsafe_code=self.spec.confirm_run_unsafe_code,
            )
            for row in results["samples"][name]:
                for metric in row["metrics"]:
                    key = self._metric(metric, row["filter"])
                    if key in self.metrics:
                        scores[f"{name}/{row['doc_id']}"][key] = float(row[metric])
        return list(scores.values())

    def evaluation(self, values: SavedValues) -> Evaluation:
        """Return the saved scores of all rows."""
        rows = values.read()
        return Evaluation(list(rows.values()), ids=list(rows))


def measure_benchmarks(
    benchmarks: Sequence[Benchmark],
    model: Candidate,
    tokenizer: Any,
    folder: Path,
    *,
    batch_size: int,
    device: Any,
) -> list[Evaluation]:
    """Return the scores of a saved model. Each process computes its share; all must call this.

    Existing scores of the same weights in `folder` are reused.
    """
    from accelerate import PartialState

    passes = []
    for benchmark in benchmarks:
        loading = repr(dict(model.loading))
        key = digest({**model.saved.identity, **benchmark.identity(), "loading": loading})
        values = benchmark.values(folder / f"{benchmark.name.replace('/', '-')}-{key}")
        passes.append(Pass(model, values, partial(benchmark.score, tokenizer, batch_size)))
    fill(model, device, passes)
    PartialState().wait_for_everyone()
    return [
        benchmark.evaluation(each.values)
        for benchmark, each in zip(benchmarks, passes, strict=True)
    ]


class BenchmarkTask(Task):
    """A benchmark in a suite, which needs the weights but no completions of ours."""

    def __init__(self, benchmark: Benchmark, batch_size: int) -> None:
        self.benchmark, self._batch_size = benchmark, batch_size
        self.name = self.title = benchmark.name
        self.metrics = [
            Metric(name, name.partition("/")[2], "higher" if higher else "lower")
            for name, higher in benchmark.metrics.items()
        ]
        self.verdict = [name for name, higher in benchmark.metrics.items() if higher][:1]

    def prompts(self, model: Candidate) -> Mapping[str, Sequence[int]]:
        """Return none: lm-eval has its own."""
        return {}

    def identity(self, model: Candidate) -> Mapping[str, Any]:
        """Return the inputs of the scores besides the weights."""
        return self.benchmark.identity()

    def passes(self, answers: Answers) -> Sequence[Pass]:
        """Return the scores."""
        compute = partial(self.benchmark.score, answers.model.tokenizer, self._batch_size)
        return [Pass(answers.model, self.benchmark.values(answers.folder), compute)]

    def score(self, answers: Answers) -> Evaluation:
        """Return the saved scores."""
        return self.benchmark.evaluation(self.benchmark.values(answers.folder))

    def data(self) -> Mapping[str, Any]:
        """Return the benchmark's settings."""
        return {"about": f"{self.benchmark.describe()}.", **asdict(self.benchmark.spec)}


def find_benchmarks(specs: Sequence[BenchmarkSpec]) -> tuple[list[Benchmark], list[Problem]]:
    """Return the benchmarks with loaded data, and the problems of the others."""
    found: dict[str, Benchmark] = {}
    problems: list[Problem] = []
    for index, spec in enumerate(specs):
        where = f"evaluation.benchmarks.{index}"
        try:
            benchmarks = {benchmark.name: benchmark for benchmark in _found(spec)}
        except ConfigError as error:
            problems += [replace(problem, where=where) for problem in error.problems]
            continue
        if twice := sorted(found.keys() & benchmarks.keys()):
            problems.append(Problem(where, f"{twice[0]} is there twice.", "Remove one."))
        found |= benchmarks
    return list(found.values()), problems


def benchmark_section(
    specs: Sequence[BenchmarkSpec], after: Mapping[str, Interval] | None
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return a description of each metric, and the record's entry for it.

    `after` has the metrics of the trained model. The leaderboard metric's entry has the fields of
    `huggingface_hub.EvalResultEntry`; other facts are in its notes.
    """
    texts: dict[str, str] = {}
    entries: list[dict[str, Any]] = []
    for benchmark in find_benchmarks(specs)[0]:
        for name, higher in benchmark.metrics.items():
            texts[name] = f"{benchmark.describe()}; {'higher' if higher else 'lower'} is better"
            entries.append({"metric": name})
            if name == benchmark.leaderboard_metric and benchmark.spec.task_id and after:
                mean = after[name].as_json()
                spread = "" if mean["low"] is None else "95% interval {low:.4g} to {high:.4g}, "
                entries[-1] |= {
                    "dataset_id": benchmark.dataset_id,
                    "task_id": benchmark.spec.task_id,
                    "value": mean["mean"] * (100 if name.split("/")[1] in _SHARES else 1),
                    "date": now(),
                    "notes": f"{name}, mean {{mean:.4g}}, {spread}n={{n}}; ".format(**mean)
                    + texts[name],
                }
    return texts, entries


@cache
def _found(spec: BenchmarkSpec) -> tuple[Benchmark, ...]:
    """Return the benchmark of an entry, or all of a tag. Raises ConfigError."""

    refused = partial(_refusal, spec)
    if find_spec("lm_eval") is None:
        fix = "`pip install 'hf-rlhf[benchmarks]'`."
        raise refused("needs lm-eval, which is not installed.", fix)
    manager = _manager(spec.name.endswith(".yaml"))
    if spec.name not in manager.all_tasks and not Path(spec.name).is_file():
        hint = did_you_mean(spec.name, manager.all_tasks)
        fix = "`lm-eval ls tasks` lists them; a task of your own is a path to its YAML file."
        raise refused(f"is no task, group or tag of lm-eval{hint}.", fix)
    try:
        loaded = manager.load([spec.name])
    except Exception as error:  # noqa: BLE001 - a task downloads its data, and has code of its own
        what = f"does not load: {first_line(error)}"
        raise refused(what, "Can its data be reached?") from error
    tasks, group = loaded["tasks"], next(iter(loaded["groups"].values()), None)
    if group and not all(
        each.weight_by_size for each in group.aggregate_metric_list or [_UNWEIGHTED]
    ):
        names = ", ".join(list(tasks)[:8])
        raise refused("is a group whose score is no mean over rows.", f"Name them: {names}.")
    for name, task in tasks.items():
        _prepare(task, name, spec)
    by_name = {group.name: tasks} if group else {name: {name: task} for name, task in tasks.items()}
    benchmarks = tuple(Benchmark(spec, name, each) for name, each in by_name.items())
    for each in benchmarks:
        if not each.metrics:
            raise refused(f"{each.name} has no metric that is a mean over rows.", "Choose another.")
        if spec.metric and each.leaderboard_metric not in each.metrics:
            names = ", ".join(name.removeprefix(f"{each.name}/") for name in each.metrics)
            raise refused(f"{each.name} has no metric {spec.metric!r}.", f"There are: {names}.")
        if spec.task_id and (len(benchmarks) > 1 or each.dataset_id is None):
            what = (
                f"`task_id` is of one benchmark on the Hub, and {each.name} has no dataset there."
            )
            raise refused(what, "Leave it out, or write `dataset_id: OWNER/NAME`.")
    return benchmarks


def _prepare(task: Any, name: str, spec: BenchmarkSpec) -> None:
    if getattr(task, "UNSAFE_CODE", False) and not spec.confirm_run_unsafe_code:
        what = f"{name} runs code that the model writes, on this machine."
        raise _refusal(spec, what, "`confirm_run_unsafe_code: true` accepts that.")
    if spec.num_fewshot is not None or task.config.num_fewshot is None:
        task.set_config("num_fewshot", spec.num_fewshot or 0)


def _refusal(spec: BenchmarkSpec, what: str, fix: str) -> ConfigError:
    return ConfigError([Problem("", f"{spec.name}: {what}", fix)])


@cache
def _manager(only_a_file: bool) -> Any:
    """Return lm-eval's index of tasks, which takes seconds to build."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=not only_a_file)
