"""A run of objects from Python, as its user has it: trained, repeated, changed, published."""

from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from huggingface_hub import HfApi
from transformers import TrainerCallback

from hf_rlhf import dry_run, load_record, train
from hf_rlhf.errors import ConfigError, RunFolderError
from hf_rlhf.storage.record import write_record
from hf_rlhf.testing.hubs import use_hub
from hf_rlhf.testing.minimal import minimal_settings
from hf_rlhf.testing.plain import PlainGRPO

pytestmark = pytest.mark.slow
GOOD = 1.0


def rows(last: str = "12") -> DatasetDict:
    answers = [*map(str, range(1, 12)), last]
    data = Dataset.from_list([{"prompt": f"{a} =", "answer": a} for a in answers])
    return DatasetDict(train=data.select(range(8)), test=data.select(range(8, 12)))


def letters(completions, answer, **kwargs):
    """Share of letters."""
    return [GOOD * sum(map(str.isalpha, text)) / max(len(text), 1) for text in completions]


class Steps(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, **_):
        self.seen.append(state.global_step)


@pytest.fixture
def settings(minimal_run, tmp_path, monkeypatch):
    """Return what makes a run in memory small; the trainer exists in this process only."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def even(completions, **_): return [1.0] * len(completions)")
    given = {key: minimal_run[key] for key in ("plugin", "model_name_or_path")}
    model = given.pop("model_name_or_path")
    return {
        "model": model,
        "output_dir": str(tmp_path / "run"),
        "evaluation": {"rows": 4},
        **given,
        **minimal_settings(PlainGRPO.Config),
    }


def test_a_run_in_memory_is_recorded_resumed_and_refused_like_any_other(settings, monkeypatch):
    steps = Steps()
    rewards = [letters, {"name": "mine.py:even", "weight": 0.5}]
    given = {**settings, "rewards": rewards, "callbacks": [steps]}
    record = train(dataset=rows(), **given)
    folder = Path(settings["output_dir"])
    assert record.status == "finished"
    assert steps.seen == [1, 2]
    assert record == load_record(folder)
    assert record.data.splits == {"train": 8, "test": 4}
    assert record.data.adapter == "python:dataset"
    assert {"letters", "even"} < set(record.evaluation.difference)
    code = {each.label: each for each in record.components if each.kind == "rewards"}
    assert "def letters" in code["letters"].source
    assert code["even"].source == Path("mine.py").read_text()
    card = (folder / "README.md").read_text()
    assert "objects that a run file cannot name: `python:letters` (source in `run.json`)" in card
    assert "accelerate launch" not in card.split("## Reproduction")[1].split("<details>")[0]
    assert "Share of letters" in card

    # Interrupted after the first step, the same call goes on from there.
    write_record(record.model_copy(update={"status": "interrupted"}), folder)
    for name in ("checkpoints/checkpoint-2", "merged"):
        (folder / name).rename(folder / f"{Path(name).name}-away")
    again = Steps()
    assert train(dataset=rows(), **{**given, "callbacks": [again]}).status == "finished"
    assert again.seen == [2]

    with pytest.raises(RunFolderError, match="content of the rows in 'test' changed"):
        train(dataset=rows("13"), **given)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "GOOD", 2.0)
        with pytest.raises(RunFolderError, match=r"code of letters changed: letters"):
            train(dataset=rows(), **given)
    Path("mine.py").write_text(Path("mine.py").read_text().replace("1.0", "2.0"))
    with pytest.raises(
        RunFolderError, match=r"code of even changed: mine.py(.|\n)*\+def even.*2.0"
    ):
        dry_run(dataset=rows(), **given)


def test_a_run_in_memory_is_published_with_the_source_of_its_reward(
    settings, tmp_path, monkeypatch
):
    local_hub = pytest.importorskip("hf_rlhf_local_hub")
    with local_hub.serve(tmp_path / "hub") as hub:
        use_hub(monkeypatch, hub.url)
        publish = {"repo_id": "demo/letters", "base_model": "demo/base", "push_base": True}
        settings |= {"publish": publish, "evaluation": None, "max_steps": 1}
        record = train(dataset=rows(), rewards=[letters], **settings)
        assert "run.json is published with the source of letters" in record.advice
        api = HfApi(hub.url)
        assert not [name for name in api.list_repo_files("demo/letters") if name.endswith(".py")]
        pulled = load_record(Path(api.hf_hub_download("demo/letters", "run.json")).parent)
        assert "def letters" in pulled.components[-2].source
        # What is pulled cannot be run by name, and the message says what to do.
        config = api.hf_hub_download("demo/letters", "config.yaml")
        with pytest.raises(ConfigError, match=r"'python:letters' was passed as an object"):
            train(config=config)
