"""`hf-rlhf eval` end to end on tiny models, and what it does when something is wrong."""

import json
import shutil

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, JudgeError
from hf_rlhf.evaluation import completions
from hf_rlhf.testing.judges import ScriptedJudge
from hf_rlhf.testing.minimal import LetterShare, minimal_rows
from hf_rlhf.testing.offering import offering
from hf_rlhf.testing.tiny import make_tiny_policy
from hf_rlhf_classic.evaluation.command import command
from hf_rlhf_classic.evaluation.plan import make_plan
from hf_rlhf_classic.evaluation.task import suite_of

SAMPLING = {
    "temperature": 1.0,
    "max_new_tokens": 8,
    "completions_per_prompt": 3,
    "batch_size": 4,
}


def _file(**changes):
    values = {
        "dataset": {"name": "minimal_rows"},
        "rewards": [{"name": "letter_share"}],
        "evaluation": SAMPLING,
        "eval": {"use_cpu": True},
    }
    return RunFile.from_mapping({**values, **changes}, "eval.yaml")


def _plan(models, file=None):
    values = dict((file or _file()).values)
    return make_plan(_file(**values | {"eval": {**values["eval"], "models": models}}))


def _evaluate(plan, out, command=()):
    return suite_of(plan, out).run(command)


def _results(results):
    return results["tasks"]["prompts"]["results"]


def _rows(results, label):
    return results["tasks"]["prompts"]["rows"][label]["values"]


def _longer(question):
    other = question.context.rpartition("The other answer:\n")[2]
    return (1 + (len(question.candidate) > len(other)) - (len(question.candidate) < len(other))) / 2


DOWN: list[str] = []
"""Not empty: the judge `by_length` is down."""


class ByLength(ScriptedJudge):
    """Prefers the longer answer."""

    def __init__(self) -> None:
        super().__init__(_longer)

    async def judge(self, questions):
        if DOWN:
            raise JudgeError("by_length has not answered")
        return await super().judge(questions)


class _NeedsGold:
    def __call__(self, prompts, completions, gold, **_):
        return [1.0 for _ in completions]


@pytest.fixture(scope="module", autouse=True)
def _offered():
    offered = {
        "datasets": {"minimal_rows": minimal_rows},
        "rewards": {
            "letter_share": LetterShare,
            "needs_gold": _NeedsGold,
        },
        "judges": {"by_length": ByLength},
    }
    with offering(offered):
        yield


@pytest.fixture(scope="module")
def other_policy(tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def evaluated(tiny_policy, other_policy, tmp_path_factory):
    """One model, the same again, and another, by the total and by a judge."""
    out = tmp_path_factory.mktemp("eval") / "out"
    file = _file(
        judges={"by_length": {"name": "by_length"}},
        eval={"use_cpu": True, "compare": ["total", {"judge": "by_length"}]},
    )
    models = {"one": str(tiny_policy), "same": str(tiny_policy), "other": str(other_policy)}
    return _evaluate(_plan(models, file), out, ["hf-rlhf", "eval"]), out


def test_a_model_against_itself_ties_and_has_not_moved(evaluated):
    same = _results(evaluated[0])["same"]
    zero = {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 4, "values": 4}
    assert same["means"]["kl_k1"] == same["difference"]["total"] == zero
    assert same["kl_per_token_k3"]["mean"] == 0.0
    for by in ("win rate by total", "win rate by judge by_length"):
        assert same["means"][by]["mean"] == 0.5
        assert same["win_counts"][by]["ties"] == 12


def test_another_model_has_moved_and_is_compared_by_prompt(evaluated):
    other = _results(evaluated[0])["other"]
    mine, base = (_rows(evaluated[0], label)["total"] for label in ("other", "one"))
    assert other["means"]["kl_k3"]["mean"] > 0
    assert other["difference"]["total"]["mean"] == pytest.approx(sum(mine) / 4 - sum(base) / 4)
    wins = other["win_counts"]["win rate by judge by_length"]
    assert wins["wins"] + wins["ties"] + wins["losses"] == 12
    assert wins["position"]["bias"] == pytest.approx(0.0, abs=1e-9)


def _completions(results, out, label):
    (folder,) = _results(results)[label]["folders"]
    return out / folder / "completions.jsonl"


def test_kl_is_that_of_a_direct_computation(evaluated, tiny_policy, other_policy):
    """Each completion alone, without padding, its sum of log-probabilities by cross entropy."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result, out = evaluated
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    models = [AutoModelForCausalLM.from_pretrained(path) for path in (other_policy, tiny_policy)]
    lines = _completions(result, out, "other").read_text().splitlines()
    saved = {int(line["id"]): line["value"] for line in map(json.loads, lines)}
    completions_of = [saved[index] for index in range(len(saved))]
    ratios = []
    for index, each in enumerate(completions_of):
        prompt = minimal_rows()["test"][index // 3]["prompt"]
        text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        start = tokenizer(text, add_special_tokens=False)["input_ids"]
        labels = torch.tensor([[-100] * len(start) + each["ids"]])
        ids = torch.tensor([start + each["ids"]])
        with torch.no_grad():
            mine, theirs = (-model(ids, labels=labels).loss * len(each["ids"]) for model in models)
        ratios.append(float(mine - theirs))
    other = _results(result)["other"]
    assert other["means"]["kl_k1"]["mean"] == pytest.approx(sum(ratios) / len(ratios), abs=1e-4)
    tokens = sum(len(each["ids"]) for each in completions_of)
    assert other["kl_per_token_k1"]["mean"] == pytest.approx(sum(ratios) / tokens, abs=1e-5)


def test_what_is_written_can_be_looked_at(evaluated):
    from PIL import Image

    result, out = evaluated
    assert json.loads((out / "results.json").read_text()) == result
    page = (out / "results.md").read_text()
    for wanted in ("| one | same |", "| win rate by total |", "position bias", "results.png"):
        assert wanted in page
    assert "<summary>Prompt</summary>" in page
    picture = Image.open(out / "results.png").convert("RGB")
    assert picture.width > 800
    assert len(picture.getcolors(maxcolors=2**24)) > 50  # not an empty canvas


def test_the_same_command_generates_nothing_again(evaluated, tmp_path, monkeypatch):
    result, out = evaluated
    again = tmp_path / "out"
    shutil.copytree(out, again)
    path = _completions(result, again, "other")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[8:]))  # three of the second batch are lost
    calls = []
    original = completions.generate
    monkeypatch.setattr(
        completions, "generate", lambda *a, **k: calls.append(k) or original(*a, **k)
    )
    models = {name: seeds[0]["source"] for name, seeds in result["models"].items()}
    results = _evaluate(_plan(models), again)
    assert len(calls) == 1
    assert _rows(results, "other")["total"] == _rows(result, "other")["total"]


def test_a_judge_that_is_down_costs_no_completions(
    tiny_policy, other_policy, tmp_path, monkeypatch
):
    file = _file(
        judges={"by_length": {"name": "by_length"}},
        evaluation={**SAMPLING, "rows": 1, "completions_per_prompt": 1},
        eval={"use_cpu": True, "compare": ["judge"]},
    )
    plan = _plan({"a": str(tiny_policy), "b": str(other_policy)}, file)
    DOWN.append("down")
    try:
        with pytest.raises(JudgeError, match="has not answered"):
            _evaluate(plan, tmp_path / "out")
    finally:
        DOWN.clear()
    monkeypatch.setattr(completions, "generate", None)
    results = _evaluate(plan, tmp_path / "out")
    assert _results(results)["b"]["win_counts"]["win rate by judge by_length"]["not_judged"] == 0


def test_other_tokenizers_give_no_kl_and_a_word(tiny_policy, tmp_path):
    from transformers import AutoTokenizer

    other = shutil.copytree(tiny_policy, tmp_path / "other")
    tokenizer = AutoTokenizer.from_pretrained(other)
    ids = tokenizer.get_vocab()
    page = (other / "tokenizer.json").read_text()
    letters = sorted(name for name in ids if len(name) == 1 and name.isalpha())[:2]
    old = [f'"{name}": {ids[name]}' for name in letters]
    assert all(each in page for each in old)
    new = [
        f'"{name}": {ids[swapped]}' for name, swapped in zip(letters, letters[::-1], strict=True)
    ]
    page = page.replace(old[0], "first").replace(old[1], new[1]).replace("first", new[0])
    (other / "tokenizer.json").write_text(page)
    sampled = _file(evaluation={**SAMPLING, "completions_per_prompt": 1})
    plan = _plan({"a": str(tiny_policy), "b": str(other)}, sampled)
    results = _evaluate(plan, tmp_path / "out")
    means = _results(results)["b"]["means"]
    assert "kl_k1" not in means
    assert any("tokenizers differ" in note for note in results["notes"])
    assert "win rate by total" in means


def _problem(models, **changes):
    changes["eval"] = {"models": models, **changes.get("eval", {})}
    with pytest.raises(ConfigError) as caught:
        make_plan(_file(**changes))
    return str(caught.value)


def test_options_are_keys_of_the_file_and_wrong_ones_are_refused(tiny_policy, tmp_path):
    path = tmp_path / "eval.yaml"
    path.write_text(_file().to_yaml())
    argv = [str(path), "--model", f"sft_tiny={tiny_policy}", "--baseline", "sft_tny"]
    with pytest.raises(ConfigError) as caught:
        command([*argv, "--compare", "judge"])
    for wanted in ("Did you mean `sft_tiny`?", "names no judge"):
        assert wanted in str(caught.value)


@pytest.mark.parametrize("options", [[], ["--model", "b=/nowhere", "--compare", "total"]])
def test_sections_of_another_type_are_reported_with_their_line(tmp_path, options):
    path = tmp_path / "eval.yaml"
    path.write_text("schema: 1\neval:\n  models: [a]\n  compare: length\n")
    with pytest.raises(ConfigError) as caught:
        command([str(path), *options])
    for wanted in ("eval.yaml:3 eval.models: should be a map", "eval.yaml:4 eval.compare: should"):
        assert wanted in str(caught.value)


def test_everything_wrong_is_said_at_once(tiny_policy, tmp_path):
    tmp_path.joinpath("empty").mkdir()
    message = _problem(
        {"a": str(tiny_policy), "b": str(tmp_path / "empty"), "c": "c"},
        rewards=[{"name": "needs_gold"}],
        eval={"baselin": "a", "compare": ["helpfulness", {"judge": "nobody"}]},
    )
    assert "has no run.json (a run folder), no config.json (a model)" in message
    assert "eval.models.c: " in message
    assert "`baselin` is not a setting of `eval`. Did you mean `baseline`?" in message
    assert "'needs_gold' needs the column gold" in message


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"evaluation": {**SAMPLING, "split": "validation"}}, "no rows in the split 'validation'"),
        ({"evaluation": {**SAMPLING, "max_new_tokens": 5000}}, "over its 512 positions"),
        ({"learning_rate": 1.0}, "`learning_rate` is not a setting of an evaluation"),
        ({"baseline": "a"}, "`baseline` belongs under `eval:`"),
        ({"eval": {"compare": ["helpfulness"]}}, "no reward is labelled 'helpfulness'"),
        ({"eval": {"compare": [{"judge": "x", "criterio": "y"}]}}, "`criterio` is not a setting"),
    ],
)
def test_what_is_wrong_is_said_before_weights_load(tiny_policy, changes, wanted):
    assert wanted in _problem({"a": str(tiny_policy)}, **changes)


def test_weights_that_are_not_whole_are_not_made_up(tiny_policy, tmp_path):
    from safetensors.torch import load_file, save_file

    from hf_rlhf.errors import ModelError

    folder = shutil.copytree(tiny_policy, tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    remaining_weights = {name: each for name, each in weights.items() if "layers.1" not in name}
    save_file(remaining_weights, folder / "model.safetensors", metadata={"format": "pt"})
    plan = _plan({"half": str(folder)})
    with pytest.raises(ModelError, match="lacks .* weights of its architecture"):
        _evaluate(plan, tmp_path / "out")


@pytest.fixture(scope="module")
def adapter(tiny_policy, tmp_path_factory):
    """A LoRA adapter that changes the model, and says which base it was made for."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from hf_rlhf.models.fingerprint import identify, write_identity

    folder = tmp_path_factory.mktemp("adapter")
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_policy), config)
    model.save_pretrained(folder)
    write_identity(folder, identify(tiny_policy))
    return folder


@pytest.mark.slow
def test_an_adapter_is_measured_on_its_base(tiny_policy, adapter, tmp_path):
    lora = {"base": str(tiny_policy), "adapter": str(adapter)}
    file = _file(evaluation={**SAMPLING, "rows": 1, "completions_per_prompt": 1})
    plan = _plan({"base": str(tiny_policy), "bare": str(adapter), "lora": lora}, file)
    results = _evaluate(plan, tmp_path)
    assert _results(results)["lora"]["means"]["kl_k3"]["mean"] > 0
    assert _rows(results, "bare") == _rows(results, "lora")


@pytest.fixture
def run_folder(other_policy, tmp_path):
    """A finished run as the core leaves it: record, merged weights."""
    from hf_rlhf.storage.record import new_record, write_record

    folder = tmp_path / "ppo-tiny"
    shutil.copytree(other_policy, folder / "merged")
    training = {"steps": 40, "seconds": 95.0, "peak_memory": {"bytes": 2**29, "of": "RSS"}}
    record = new_record(plugin={"name": "ppo"}, training=training, status="finished")
    write_record(record, folder)
    return folder


@pytest.mark.slow
def test_results_go_into_record_and_card(tiny_policy, run_folder, tmp_path):
    from hf_rlhf.storage.record import load_record

    path = tmp_path / "eval.yaml"
    path.write_text(_file().to_yaml())
    out = tmp_path / "out"
    argv = [str(path), "--model", f"sft={tiny_policy}", "--model", f"ppo={run_folder}"]
    assert command([*argv, "--out", str(out), "--record"]) == 0
    results = load_record(run_folder).comparison
    assert results["name"] == "ppo"
    assert _results(results)["ppo"]["means"]["kl_k3"]["mean"] > 0
    card = (run_folder / "README.md").read_text()
    assert "## Compared with other models" in card
    assert "2 min" in card
    assert "512 MiB (RSS)" in card
    assert "comparison.png" in card
    assert (run_folder / "comparison.png").stat().st_size > 10_000
