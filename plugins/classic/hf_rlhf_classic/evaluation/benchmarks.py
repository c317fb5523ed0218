"""Standard benchmarks with or without held-out prompts: `hf-rlhf eval --benchmark TASK`."""

from pathlib import Path

from hf_rlhf.config import EvaluationSpec, RunFile, bind
from hf_rlhf.errors import ConfigError
from hf_rlhf.evaluation import BenchmarkTask, Candidate, Suite, find_benchmarks
from hf_rlhf_classic.evaluation.spec import LOADING, SECTION, read_spec


def suite_of_benchmarks(file: RunFile, out: Path) -> Suite:
    """Return an evaluation of benchmarks alone. Raises ConfigError with all problems."""
    spec, problems = read_spec(file)
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
