"""Benchmarks of lm-eval: numbers as it has them, saved row by row, refused before weights load."""

import json
from pathlib import Path

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.config.schema import BenchmarkSpec
from hf_rlhf.errors import ConfigError
from hf_rlhf.evaluation import Candidate, benchmarks
from hf_rlhf.evaluation.benchmarks import find_benchmarks, measure_benchmarks
from hf_rlhf.evaluation.saved_models import SavedModel, find_saved

MODEL = "package://hf_rlhf_classic/tiny_sft"
TASK = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS, train: ROWS}}
test_split: test
fewshot_split: train
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
filter_list:
  - {name: first, filter: [{function: take_first}]}
"""
METRIC = "sums/exact_match/first"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A task in a folder, with 30 rows that the tiny model half knows."""
    pytest.importorskip("lm_eval", reason="needs the extra `benchmarks`")
    import datasets

    folder = tmp_path_factory.mktemp("tasks")
    sums = [(a, b) for a in range(0, 50, 10) for b in range(3, 9)]
    rows = [json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) for a, b in sums]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    (folder / "sums.yaml").write_text(TASK.replace("ROWS", str(folder / "rows.jsonl")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        yield str(folder / "sums.yaml")


def problem(**entry):
    _, (problem,) = find_benchmarks([BenchmarkSpec(**entry)])
    return str(problem)


def test_without_the_package_a_run_is_refused_before_weights_load(monkeypatch, tmp_path):
    from hf_rlhf.runs.resolve import resolve_run

    monkeypatch.setattr(benchmarks, "find_spec", lambda name: None)
    benchmarks._found.cache_clear()
    file = RunFile.read(benchmarks_run(tmp_path, "gsm8k"))
    with pytest.raises(ConfigError) as refused:
        resolve_run(file)
    assert "gsm8k: needs lm-eval, which is not installed. " in str(refused.value)
    assert "pip install 'hf-rlhf[benchmarks]'" in str(refused.value)


def benchmarks_run(folder, name, **more):
    """Return a run file of the tiny model that measures a benchmark."""
    from hf_rlhf.config import choose_run_file, dump_yaml

    values = dict(choose_run_file("grpo", None, None).values)
    values["evaluation"] = {"rows": 4, "batch_size": 4, "benchmarks": [{"name": name, **more}]}
    values |= {"max_steps": 1, "output_dir": str(folder / "run")}
    (folder / "run.yaml").write_text(dump_yaml(values))
    return folder / "run.yaml"


@pytest.mark.slow
def test_wrong_entries_are_explained(task, tmp_path):
    assert "is no task, group or tag of lm-eval" in problem(name="nowhere.yaml")
    assert "There are: exact_match/first." in problem(name=task, metric="acc")
    assert "`dataset_id: OWNER/NAME`" in problem(name=task, task_id="default")
    _, (twice,) = find_benchmarks([BenchmarkSpec(task), BenchmarkSpec(task, limit=3)])
    assert (twice.where, "sums is there twice" in str(twice)) == ("evaluation.benchmarks.1", True)
    text, code, corpus = Path(task).read_text(), tmp_path / "code.yaml", tmp_path / "corpus.yaml"
    code.write_text(text.replace("task: sums", "task: code\nunsafe_code: true"))
    assert "runs code that the model writes" in problem(name=str(code))
    assert not find_benchmarks([BenchmarkSpec(str(code), confirm_run_unsafe_code=True)])[1]
    corpus.write_text(
        text.replace("task: sums", "task: corpus")
        .replace("metric: exact_match", "metric: bleu")
        .replace("aggregation: mean", "aggregation: bleu")
    )
    assert "no metric that is a mean over rows" in problem(name=str(corpus))


@pytest.mark.slow
def test_a_group_counts_the_rows_of_its_tasks(task, tmp_path, monkeypatch):
    import yaml
    from lm_eval.tasks import TaskManager

    content = yaml.safe_load(Path(task).read_text())
    tasks = [{**content, "task": name} for name in ("first", "second")]
    weighted = [{"metric": "exact_match", "weight_by_size": True}]
    for name, aggregate in (("plain", {}), ("both", {"aggregate_metric_list": weighted})):
        group = {"group": name, "task": tasks, **aggregate}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(group))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    monkeypatch.setattr(benchmarks, "_manager", lambda only_a_file: manager)
    assert "plain: is a group whose score is no mean over rows." in problem(name="plain")
    (benchmark,), _ = find_benchmarks([BenchmarkSpec("both", limit=5)])
    assert (benchmark.name, list(benchmark.metrics)) == ("both", ["both/exact_match/first"])
    saved = find_saved(MODEL)
    with saved.load("cpu") as model:
        rows = benchmark.score(saved.tokenizer(), 8, model, benchmark.ids)
    assert len(rows) == 10
    assert rows[:5] == rows[5:]
    assert None not in [value for row in rows for value in row.values()]


@pytest.mark.slow
def test_the_numbers_are_those_of_lm_eval(task):
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    (benchmark,), _ = find_benchmarks([BenchmarkSpec(task)])
    saved = find_saved(MODEL)
    with saved.load("cpu") as model:
        rows = benchmark.score(saved.tokenizer(), 8, model, benchmark.ids)
        mean = sum(row[METRIC] for row in rows) / len(rows)
        lm = HFLM(pretrained=model, tokenizer=saved.tokenizer(), batch_size=8)
        manager = TaskManager(include_defaults=False)
        theirs = simple_evaluate(lm, tasks=[task], task_manager=manager, bootstrap_iters=0)
    assert 0 < mean < 1
    assert mean == pytest.approx(theirs["results"]["sums"]["exact_match,first"])
    assert (len(rows), benchmark.metrics) == (30, {METRIC: True})


@pytest.mark.slow
def test_a_batch_does_not_depend_on_those_before_it(task):
    """Nor, so, on the number of processes, or on where a killed evaluation stopped."""
    (benchmark,), _ = find_benchmarks([BenchmarkSpec(task, num_fewshot=2)])
    saved = find_saved(MODEL)
    with saved.load("cpu") as model:
        score = lambda ids: benchmark.score(saved.tokenizer(), 8, model, ids)  # noqa: E731
        together = score(benchmark.ids[:10]) + score(benchmark.ids[10:])
        assert score(benchmark.ids[10:]) + score(benchmark.ids[:10]) == (
            together[10:] + together[:10]
        )
    (zero,), _ = find_benchmarks([BenchmarkSpec(task)])
    assert zero.identity() != benchmark.identity()


@pytest.mark.slow
def test_saved_rows_are_not_measured_again(task, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "_BATCH", 8)
    (benchmark,), _ = find_benchmarks([BenchmarkSpec(task, limit=20)])
    saved = find_saved(MODEL)

    def measure(dtype="float32"):
        candidate = Candidate("m", saved, loading={"dtype": dtype})
        arguments = ([benchmark], candidate, saved.tokenizer(), tmp_path)
        return measure_benchmarks(*arguments, batch_size=8, device="cpu")[0]

    first = measure()
    (file,) = tmp_path.rglob("*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    assert (len(lines), len(first.rows)) == (20, 20)
    file.write_text("".join(lines[:11]))  # killed in the second batch
    assert measure() == first
    monkeypatch.setattr(SavedModel, "load", None)
    assert measure() == first
    with pytest.raises(TypeError):  # another model is loaded
        measure("bfloat16")


@pytest.mark.slow
def test_a_run_measures_it_before_and_after_and_says_so(task, tmp_path):
    from hf_rlhf import train
    from hf_rlhf.hub.layout import eval_results

    file = benchmarks_run(tmp_path, task, limit=20, task_id="sums", dataset_id="demo/sums")
    record = train(config=str(file))
    evaluation = record.evaluation
    assert evaluation is not None
    for stage in ("before", "after", "difference"):
        assert evaluation.estimate(stage, METRIC).n == 20
    assert evaluation.estimate("after", "total").n == 4
    url = "https://huggingface.co/demo/run/blob/main/run.json"
    (path, text) = next(iter(eval_results(record, url).items()))
    assert path == ".eval_results/demo--sums.yaml"
    assert "task_id: sums" in text
    assert f"value: {100 * evaluation.estimate('after', METRIC).mean:.2f}"[:-3] in text
    assert f"url: {url}" in text
    for words in ("95% interval ", "n=20", "the first 20 rows", "higher is better"):
        assert words in " ".join(text.split())
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"- `{METRIC}`: sums of lm-eval" in card
    assert f"`{METRIC}` is measured by the trainer" not in card


@pytest.mark.slow
def test_eval_measures_benchmarks_alone_and_beside_prompts(task, tmp_path, capsys, monkeypatch):
    from hf_rlhf.cli import main

    monkeypatch.chdir(tmp_path)
    models = ["--model", f"one={MODEL}", "--model", "two=package://hf_rlhf_classic/tiny_base"]
    assert main(["eval", *models, "--benchmark", task]) == 0
    results = json.loads((tmp_path / "evals/benchmarks/results.json").read_text())
    entry = results["tasks"]["sums"]["results"]["two"]
    assert entry["means"][METRIC]["values"] == entry["difference"][METRIC]["values"] == 30
    capsys.readouterr()
    options = ["--plugin", "grpo", "--evaluation.rows", "4", "--evaluation.temperature", "0"]
    only = f"{{name: {task}, limit: 12}}"
    assert main(["eval", *options, *models[:2], "--benchmark", only, "--out", "both"]) == 0
    tasks = json.loads((tmp_path / "both/results.json").read_text())["tasks"]
    assert list(tasks) == ["prompts", "sums"]
    assert tasks["sums"]["results"]["one"]["means"][METRIC]["values"] == 12
    assert main(["eval", *models, "--benchmark", "{name: x.yaml}"]) == 2
    assert "is no task" in capsys.readouterr().err
