"""Standard benchmarks with or without held-out prompts: `hf-rlhf eval --benchmark TASK`."""

import json
from collections.abc import Sequence
from pathlib import Path

from hf_rlhf.config import EvaluationSpec, RunFile, bind, value_of
from hf_rlhf.errors import ConfigError
from hf_rlhf.evaluation import BenchmarkTask, Candidate, Suite, find_benchmarks
from hf_rlhf_classic.evaluation.spec import LOADING, SECTION, Options, read_spec


def with_benchmarks(file: RunFile, benchmarks: Sequence[str]) -> RunFile:
    """Return the file with the command line's benchmarks added to its own."""
    if not benchmarks:
        return file
    values = [value_of(each) if each.startswith("{") else {"name": each} for each in benchmarks]
    section = file.values.get("evaluation") or {}
    entries = [*(section.get("benchmarks") or []), *values]
    return file.override(["--evaluation.benchmarks", json.dumps(entries)])


def suite_of_benchmarks(file: RunFile, options: Options, out: Path) -> Suite:
    """Return an evaluation of benchmarks alone. Raises ConfigError with all problems."""
    spec, problems = read_spec(file, options)
    loading = {name: getattr(spec, name) for name in LOADING}
    models, more = Candidate.find(
        spec.sources, loading, paired=(spec.baseline,), where=f"{SECTION}.models."
    )
    values, wrong = bind(
        EvaluationSpec,
        file.values["evaluation"],
        where=lambda key: file.where(("evaluation", key)),
        title="evaluation",
    )
    sampling = EvaluationSpec(**values)
    benchmarks, missing = find_benchmarks(sampling.benchmarks)
    if problems := [*file.problems, *problems, *more, *wrong, *missing]:
        raise ConfigError(problems)
    return Suite(
        out,
        models,
        [BenchmarkTask(each, sampling.batch_size) for each in benchmarks],
        sampling,
        max_new_tokens=0,
        baseline=spec.baseline or "",
        use_cpu=bool(spec.use_cpu),
        unit="rows",
    )
