"""`hf-rlhf chat`: lines in, the same text out as the evaluation generates, adapters by name."""

import io

import pytest

from hf_rlhf.cli import main
from hf_rlhf.config import EvaluationSpec
from hf_rlhf.evaluation import generate
from hf_rlhf.evaluation.saved_models import find_saved
from hf_rlhf.formatting import visible
from hf_rlhf.models import prompt_ids
from hf_rlhf.storage import new_record, write_record
from hf_rlhf.storage.checkpoints import seal
from hf_rlhf.storage.record_schema import DataSection
from hf_rlhf.testing import make_tiny_policy

TOKENS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder of a LoRA on a tiny base, with a checkpoint and one more adapter elsewhere."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("chat")
    base = str(make_tiny_policy(folder / "tiny", seed=1))
    places = ("mine/adapter", "mine/checkpoints/checkpoint-8", "elsewhere/v1.2")
    for seed, place in enumerate(places):
        torch.manual_seed(seed)
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
        model.save_pretrained(folder / place)
        AutoTokenizer.from_pretrained(base).save_pretrained(folder / place)
    seal(folder / "mine/checkpoints/checkpoint-8")
    data = DataSection(conversational=True)
    write_record(new_record(data=data, status="finished"), folder / "mine")
    return folder


@pytest.fixture
def talk(monkeypatch, capsys):
    """Return a function from the command's arguments and lines to what it prints."""

    def _talk(*arguments, lines, status=0):
        text = "".join(f"{line}\n" for line in lines)
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        words = [str(each) for each in arguments]
        assert main(["chat", *words, "--max_new_tokens", str(TOKENS)]) == status
        return capsys.readouterr()

    return _talk


def answer(source, prompt):
    """Return what the model says when adapters are merged."""
    saved = find_saved(source)
    tokenizer = saved.tokenizer()
    with saved.load("cpu", dtype="auto") as model:
        ids = prompt_ids(tokenizer, [prompt], {})
        spec = EvaluationSpec()
        return generate(model, tokenizer, ids, spec, TOKENS, seeds=[0])[0].text


def user(*turns):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]


def test_each_adapter_answers_as_it_does_merged_and_base_without_any(run, talk):
    mine = run / "mine"
    expected = {
        "mine": answer({"adapter": str(mine)}, user("Who?")),
        "base": answer(str(run / "tiny"), user("Who?")),
        "step-8": answer({"adapter": str(mine / "checkpoints/checkpoint-8")}, user("Who?")),
        "other": answer({"adapter": str(run / "elsewhere/v1.2")}, user("Who?")),
    }
    assert len(set(expected.values())) == 4
    lines = ["/adapter a", "Who?"]  # on the base itself too
    out = talk(run / "tiny", "--adapter", f"a={mine}", lines=lines).out
    assert out == f"{visible(expected['mine'])}\n"
    order = ["mine", "base", "step-8", "base", "other", "mine"]
    lines = [line for name in order for line in (f"/adapter {name}", "Who?", "/clear")]
    out = talk(mine, "--adapter", f"other={run / 'elsewhere/v1.2'}", lines=lines).out
    assert out == "".join(f"{visible(expected[name])}\n" for name in order)


def test_a_conversation_goes_on_and_can_be_forgotten(run, talk):
    source = {"adapter": str(run / "mine")}
    system = {"role": "system", "content": "Short."}
    first = answer(source, [system, *user("Who?")])
    second = answer(source, [system, *user("Who?", first, "And you?")])
    third = answer(source, [system, *user("And you?")])
    assert second != third
    lines = ["Who?", "And you?", "/clear", "And you?"]
    out = talk(run / "mine", "--system", "Short.", lines=lines).out
    assert out == "".join(f"{visible(said)}\n" for said in (first, second, third))


def test_prompts_are_plain_where_those_of_the_run_were(run, talk):
    folder = run / "mine"
    plain = answer({"adapter": str(folder)}, "Who?")
    assert talk(folder, "--plain", lines=["Who?", "Who?"]).out == f"{visible(plain)}\n" * 2
    data = DataSection(conversational=False)
    write_record(new_record(data=data, status="finished"), folder)
    try:
        checkpoint = folder / "checkpoints/checkpoint-8"  # the record is that of its run
        expected = answer({"adapter": str(checkpoint)}, "Who?")
        assert talk(checkpoint, lines=["Who?"]).out == f"{visible(expected)}\n"
    finally:
        write_record(new_record(data=DataSection(conversational=True)), folder)


def test_wrong_commands_are_explained_and_the_chat_goes_on(run, talk):
    lines = ["/adapter step-9", "x" * 600, "/adapter"]
    printed = talk(run / "mine", lines=lines)
    assert "no adapter is named 'step-9' (did you mean 'step-8'?)" in printed.err
    assert "fill the model's 512 positions." in printed.err
    assert printed.out == "  base\n* mine\n  step-8\n"


def test_nothing_that_can_be_talked_to_is_refused(run, talk):
    assert "Name a folder that has" in talk(run, lines=[], status=2).err
