"""`hf-rlhf eval` end to end on tiny models, and what it does when something is wrong."""

import json
import shutil

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, JudgeError, RunFolderError
from hf_rlhf.evaluation import completions
from hf_rlhf.testing.commands import check_command
from hf_rlhf.testing.judges import ScriptedJudge
from hf_rlhf.testing.minimal import LetterShare, minimal_rows
from hf_rlhf.testing.offering import offering
from hf_rlhf.testing.tiny import make_tiny_policy
from hf_rlhf_classic.evaluation import measure
from hf_rlhf_classic.evaluation.command import command
from hf_rlhf_classic.evaluation.plan import make_plan
from hf_rlhf_classic.evaluation.report import notes_of
from hf_rlhf_classic.evaluation.spec import Options

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


class _AbstainsOnOdd:
    def __call__(self, prompts, completions, answer, **_):
        return [None if int(one) % 2 else 1.0 for one in answer]


@pytest.fixture(scope="module", autouse=True)
def _offered():
    offered = {
        "datasets": {"minimal_rows": minimal_rows},
        "rewards": {
            "letter_share": LetterShare,
            "needs_gold": _NeedsGold,
            "abstains": _AbstainsOnOdd,
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
    models = (f"one={tiny_policy}", f"same={tiny_policy}", f"other={other_policy}")
    plan = make_plan(file, Options(models))
    return measure.evaluate(plan, out, ["hf-rlhf", "eval"]), out


def test_a_model_against_itself_ties_and_has_not_moved(evaluated):
    same = evaluated[0]["results"]["same"]
    assert same["kl"]["k1"]["per_sequence"] == {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 4}
    assert same["kl"]["k3"]["per_token"]["mean"] == 0.0
    for by in ("total", "judge by_length"):
        assert same["win_rate"][by]["interval"]["mean"] == 0.5
        assert same["win_rate"][by]["ties"] == 12
    assert same["difference"]["total"]["mean"] == 0.0


def test_another_model_has_moved_and_is_compared_by_prompt(evaluated):
    result, _ = evaluated
    other, rows = result["results"]["other"], result["rows"]
    assert other["kl"]["k3"]["per_sequence"]["mean"] > 0
    gain = sum(rows["other"]["total"]) / 4 - sum(rows["one"]["total"]) / 4
    assert other["difference"]["total"]["mean"] == pytest.approx(gain)
    won = other["win_rate"]["judge by_length"]
    assert won["wins"] + won["ties"] + won["losses"] == 12
    assert won["position"]["bias"] == pytest.approx(0.0, abs=1e-9)


def test_kl_is_that_of_a_direct_computation(evaluated, tiny_policy, other_policy):
    """Each completion alone, without padding, its sum of log-probabilities by cross entropy."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result, out = evaluated
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    models = [AutoModelForCausalLM.from_pretrained(path) for path in (other_policy, tiny_policy)]
    lines = (out / "models" / "other" / "completions.jsonl").read_text().splitlines()
    made = [json.loads(line)["value"] for line in lines]
    ratios = []
    for place, one in enumerate(made):
        prompt = minimal_rows()["test"][place // 3]["prompt"]
        text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        start = tokenizer(text, add_special_tokens=False)["input_ids"]
        labels = torch.tensor([[-100] * len(start) + one["ids"]])
        ids = torch.tensor([start + one["ids"]])
        with torch.no_grad():
            mine, theirs = (-model(ids, labels=labels).loss * len(one["ids"]) for model in models)
        ratios.append(float(mine - theirs))
    found = result["results"]["other"]["kl"]["k1"]
    assert found["per_sequence"]["mean"] == pytest.approx(sum(ratios) / len(ratios), abs=1e-4)
    tokens = sum(len(one["ids"]) for one in made)
    assert found["per_token"]["mean"] == pytest.approx(sum(ratios) / tokens, abs=1e-5)


def test_what_is_written_can_be_looked_at(evaluated):
    from PIL import Image

    result, out = evaluated
    assert json.loads((out / "evaluation.json").read_text())["results"] == result["results"]
    page = (out / "evaluation.md").read_text()
    for wanted in ("| one |", "| same |", "win rate by total", "position bias", "frontier.png"):
        assert wanted in page
    picture = Image.open(out / "frontier.png").convert("RGB")
    assert picture.width > 800
    assert len(picture.getcolors(maxcolors=2**24)) > 50  # not an empty canvas


def test_the_same_command_generates_nothing_again(evaluated, tiny_policy, tmp_path, monkeypatch):
    result, out = evaluated
    again = tmp_path / "out"
    shutil.copytree(out, again)
    path = again / "models" / "other" / "completions.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[8:]))  # three of the second batch are lost
    calls = []
    original = completions.generate
    monkeypatch.setattr(
        completions, "generate", lambda *a, **k: calls.append(k) or original(*a, **k)
    )
    file = _file(judges={"by_length": {"name": "by_length"}})
    models = tuple(f"{name}={some[0]['asked']}" for name, some in result["models"].items())
    plan = make_plan(file, Options(models))
    found = measure.evaluate(plan, again, [])
    assert len(calls) == 1
    assert found["rows"] == result["rows"]
    hotter = _file(evaluation={**SAMPLING, "temperature": 0.5})
    with pytest.raises(RunFolderError, match="another evaluation"):
        measure.evaluate(make_plan(hotter, Options(models)), again, [])


def test_another_chat_template_asks_other_questions(tiny_policy, tmp_path):
    model = shutil.copytree(tiny_policy, tmp_path / "model")
    options = Options((f"a={model}",))
    measure.evaluate(make_plan(_file(), options), tmp_path / "out", [])
    template = model / "chat_template.jinja"
    template.write_text("b" + template.read_text())
    with pytest.raises(RunFolderError, match=r"another evaluation[^$]*\n  - prompts: "):
        measure.evaluate(make_plan(_file(), options), tmp_path / "out", [])


def test_a_judge_that_is_down_costs_no_completions(
    tiny_policy, other_policy, tmp_path, monkeypatch
):
    file = _file(
        judges={"by_length": {"name": "by_length"}}, eval={"use_cpu": True, "compare": ["judge"]}
    )
    plan = make_plan(file, Options((f"a={tiny_policy}", f"b={other_policy}")))
    DOWN.append("down")
    try:
        with pytest.raises(JudgeError, match="has not answered"):
            measure.evaluate(plan, tmp_path / "out", [])
    finally:
        DOWN.clear()
    monkeypatch.setattr(completions, "generate", None)
    found = measure.evaluate(plan, tmp_path / "out", [])
    assert found["results"]["b"]["win_rate"]["judge by_length"]["not_judged"] == 0


def test_greedy_completions_give_no_kl(tiny_policy, other_policy, tmp_path):
    file = _file(evaluation={**SAMPLING, "temperature": 0.0, "completions_per_prompt": 1})
    plan = make_plan(file, Options((f"a={tiny_policy}", f"b={other_policy}")))
    found = measure.evaluate(plan, tmp_path, [])
    assert found["results"]["b"]["kl"] is None
    assert "KL left out: greedy" in found["notes"][0]
    assert notes_of(found)[0].startswith("4 prompts of minimal_rows (test), ")
    files = found["data"] | {"adapter": "prompts", "arguments": {"path": "half.jsonl"}}
    assert notes_of(found | {"data": files})[0].startswith("4 prompts of prompts, half.jsonl (")
    assert not (tmp_path / "frontier.png").exists()


def test_other_tokenizers_give_no_kl_and_a_word(tiny_policy, tmp_path):
    from transformers import AutoTokenizer

    other = shutil.copytree(tiny_policy, tmp_path / "other")
    tokenizer = AutoTokenizer.from_pretrained(other)
    ids = tokenizer.get_vocab()
    page = (other / "tokenizer.json").read_text()
    letters = sorted(name for name in ids if len(name) == 1 and name.isalpha())[:2]
    old = [f'"{name}": {ids[name]}' for name in letters]
    assert all(one in page for one in old)
    new = [
        f'"{name}": {ids[swapped]}' for name, swapped in zip(letters, letters[::-1], strict=True)
    ]
    page = page.replace(old[0], "first").replace(old[1], new[1]).replace("first", new[0])
    (other / "tokenizer.json").write_text(page)
    plan = make_plan(_file(), Options((f"a={tiny_policy}", f"b={other}")))
    found = measure.evaluate(plan, tmp_path / "out", [])
    assert found["results"]["b"]["kl"] is None
    assert any("tokenizers differ" in note for note in found["notes"])
    assert found["results"]["b"]["win_rate"]["total"]["interval"] is not None


def test_a_reward_that_abstains_is_counted_and_counts_for_nothing(tiny_policy, tmp_path):
    plan = make_plan(_file(rewards=[{"name": "abstains"}]), Options((f"a={tiny_policy}",)))
    found = measure.evaluate(plan, tmp_path, [])
    assert found["results"]["a"]["metrics"]["total"] == {"mean": 1, "low": 1, "high": 1, "n": 2}
    assert "a: abstains abstained on 6 of 12." in found["notes"]


def test_seeds_of_one_name_are_one_row(tiny_policy, other_policy, tmp_path):
    models = (f"base={tiny_policy}", f"ppo={tiny_policy}", f"ppo={other_policy}")
    plan = make_plan(_file(), Options(models))
    found = measure.evaluate(plan, tmp_path, [])
    assert list(found["results"]) == ["base", "ppo"]
    assert found["results"]["ppo"]["checkpoints"] == 2
    rows = found["rows"]
    both = [*rows["ppo"]["total"], *rows["ppo.2"]["total"]]
    assert found["results"]["ppo"]["metrics"]["total"]["mean"] == pytest.approx(sum(both) / 8)


def _problem(options=None, **changes):
    with pytest.raises(ConfigError) as caught:
        make_plan(_file(**changes), options)
    return str(caught.value)


def test_a_baseline_that_is_not_among_the_models(tiny_policy):
    said = _problem(Options((f"sft_tiny={tiny_policy}",), baseline="sft_tny"))
    assert said.startswith("1 problem")
    assert "no model is named 'sft_tny'. Did you mean `sft_tiny`?" in said


def test_everything_wrong_is_said_at_once(tiny_policy, tmp_path):
    tmp_path.joinpath("empty").mkdir()
    said = _problem(
        Options((f"a={tiny_policy}", f"b={tmp_path / 'empty'}", "c")),
        rewards=[{"name": "needs_gold"}],
        eval={"baselin": "a", "compare": ["helpfulness", {"judge": "nobody"}]},
    )
    assert "has no run.json (a run folder), no config.json (a model)" in said
    assert "--model c: is not a name and a place." in said
    assert "`baselin` is not a setting of `eval`. Did you mean `baseline`?" in said
    assert "'needs_gold' needs the column gold" in said


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"evaluation": {**SAMPLING, "split": "validation"}}, "no rows in the split 'validation'"),
        ({"evaluation": {**SAMPLING, "max_new_tokens": 5000}}, "over its 512 positions"),
        ({"learning_rate": 1.0}, "`learning_rate` is not a setting of an evaluation"),
        ({"baseline": "a"}, "`baseline` belongs under `eval:`"),
        ({"eval": {"models": {"b": []}}}, "eval.models.b: is an empty list"),
        ({"eval": {"models": {5: "x"}}}, "models"),
        ({"eval": {"compare": ["helpfulness"]}}, "no reward is labelled 'helpfulness'"),
        ({"eval": {"compare": ["judge"]}}, "which judge is not said"),
        ({"eval": {"compare": [{"judge": "x", "criterio": "y"}]}}, "`criterio` is not a setting"),
    ],
)
def test_what_is_wrong_is_said_before_weights_load(tiny_policy, changes, wanted):
    assert wanted in _problem(Options((f"a={tiny_policy}",)), **changes)


def test_a_criterion_names_a_column_that_is_not_there(tiny_policy):
    said = _problem(
        Options((f"a={tiny_policy}",)),
        judges={"by_length": {"name": "by_length"}},
        eval={"compare": [{"judge": "by_length", "criterion": "States {gold}."}]},
    )
    assert "the criterion names gold, which the rows lack. Their columns: answer" in said


def test_weights_that_are_not_whole_are_not_made_up(tiny_policy, tmp_path):
    from safetensors.torch import load_file, save_file

    from hf_rlhf.errors import ModelError

    folder = shutil.copytree(tiny_policy, tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    kept = {name: one for name, one in weights.items() if "layers.1" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    plan = make_plan(_file(), Options((f"half={folder}",)))
    with pytest.raises(ModelError, match="lacks .* weights of its architecture"):
        measure.evaluate(plan, tmp_path / "out", [])


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


def test_an_adapter_is_measured_on_its_base(tiny_policy, adapter, tmp_path):
    lora = f"lora={{base: {tiny_policy}, adapter: {adapter}}}"
    plan = make_plan(_file(), Options((f"base={tiny_policy}", f"bare={adapter}", lora)))
    found = measure.evaluate(plan, tmp_path, [])
    moved = found["results"]["lora"]["kl"]["k3"]["per_sequence"]["mean"]
    assert moved > 0
    assert found["rows"]["bare"] == found["rows"]["lora"]


def test_an_adapter_of_another_base_is_refused(other_policy, adapter):
    said = _problem(Options((f"lora={{base: {other_policy}, adapter: {adapter}}}",)))
    assert "was made for another base" in said
    assert "fingerprint" in said


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


def test_results_go_into_record_and_card(tiny_policy, run_folder, tmp_path):
    from hf_rlhf.storage.record import load_record

    path = tmp_path / "eval.yaml"
    path.write_text(_file().to_yaml())
    out = tmp_path / "out"
    argv = [str(path), "--model", f"sft={tiny_policy}", "--model", f"ppo={run_folder}"]
    assert command([*argv, "--out", str(out), "--record"]) == 0
    found = load_record(run_folder).comparison
    assert found["name"] == "ppo"
    assert found["results"]["ppo"]["kl"]["k3"]["per_sequence"]["mean"] > 0
    card = (run_folder / "README.md").read_text()
    assert "## Compared with other models" in card
    assert "2 min" in card
    assert "512 MiB (RSS)" in card
    assert "comparison.png" in card
    assert (run_folder / "comparison.png").stat().st_size > 10_000


def test_record_needs_a_run(tiny_policy, tmp_path):
    path = tmp_path / "eval.yaml"
    path.write_text(_file().to_yaml())
    with pytest.raises(ConfigError, match="none of the models is a run folder"):
        command([str(path), "--model", f"a={tiny_policy}", "--record"])


def test_the_command_behaves_as_the_others_do(tiny_policy, tmp_path):
    path = tmp_path / "eval.yaml"
    path.write_text(_file(evaluation={**SAMPLING, "rows": 1}).to_yaml())
    argv = [str(path), "--model", f"a={tiny_policy}", "--out", str(tmp_path / "out")]
    check_command(command, argv)
