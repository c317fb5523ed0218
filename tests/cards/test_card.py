"""`HF_RLHF_REGENERATE=1 pytest tests/cards/test_card.py` writes the golden cards again."""

import copy
import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from hf_rlhf.cards.history import reward_history
from hf_rlhf.cards.metadata import card_folder, metadata_problems
from hf_rlhf.errors import ConfigError
from hf_rlhf.formatting import (
    cell,
    code,
    fence,
    plain,
    verdict,
    visible,
)
from hf_rlhf.storage.record import RunRecord, new_record
from hf_rlhf.storage.record_schema import Estimate, RewardSection
from tests.cards.from_json import (
    complete,
    license_of,
    render_card,
    reward_curve,
    settings_of,
    setup,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "cards"
EXAMPLE = json.loads((GOLDEN / "finished_lora.json").read_text(encoding="utf-8"))


def example():
    return copy.deepcopy(EXAMPLE)


def interrupted():
    record = example()
    record |= {"status": "interrupted", "evaluation": None, "finished": "2026-11-20T09:16:10Z"}
    record["training"] |= {"steps": 23, "epochs": 0.71875, "seconds": 121.0}
    record["training"]["history"] = record["training"]["history"][:23]
    record["sessions"] = [
        {"status": "killed", "from_step": 0, "to_step": 10, "changed": []},
        {
            "status": "interrupted",
            "from_step": 10,
            "to_step": 23,
            "changed": ["packages.torch: 2.12.0 -> 2.13.0"],
        },
    ]
    record["samples"] = [
        {**one, "step": 20} for one in record["samples"] if one["stage"] == "train"
    ][:1]
    record["environment"]["sources"]["hf-rlhf-refiner"] = {
        **{"kind": "editable", "commit": "1d5e7c0b9a8f7e6d5c4b3a29181716151413121f", "dirty": True}
    }
    record["model"]["license"] = None
    record["publish"] = None
    record["author"] = complete({})["author"]
    return record


def full_fine_tune():
    """The published 4B recipe in outline: ZeRO-3, a served judge, all weights."""
    record = example()
    base = "acme/qwen3-4b-refiner-sft"
    record["model"] |= {
        **{"base": base, "adapter": None, "dtype": "bfloat16", "lineage": ["Qwen/Qwen3-4B", base]},
        **{"parameters": 4_022_468_096, "trainable_parameters": 4_022_468_096, "revision": None},
        **{"license": "other", "license_name": "acme-research", "license_link": "LICENSE"},
    }
    record["author"] |= {"title": None, "tags": [], "language": ["en", "no"]}
    record["publish"]["repo_id"] = "acme/qwen3-4b-refiner-grpo"
    record["training"] |= {
        **{"distributed": {"type": "DEEPSPEED", "zero_stage": 3}, "world_size": 8},
        **{"seconds": 40_320.0},
    }
    record["config"] |= {
        **{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 32, "use_vllm": True},
        **{"vllm_mode": "colocate", "attn_implementation": "flash_attention_2"},
        **{"max_completion_length": 1024, "bf16": True, "learning_rate": 5e-6, "use_peft": False},
    }
    record["data"] |= {
        **{"adapter": "refiner_rows", "arguments": {"path": "acme/refiner_rows"}},
        "report": {"source": "acme/refiner_rows", "commit": "9f2c", "rows_read": 512},
    }
    record["exactness"] = {
        **{"values": "log-probabilities", "rows": 3, "tokens": 256, "comparisons": []},
        "not_compared": {"the model": "DEEPSPEED places and shards its weights"},
    }
    record["reward"]["judges"] = [
        {
            **{"label": "main", "name": "openai", "model": "Qwen/Qwen3.5-35B-A3B"},
            **{"revision": None, "prompt_hash": "b1946ac92492d2347c6235b4d2611184"},
            "usage": {"calls": 98_304.0, "cached": 1_204.0, "failed": 0.0, "tokens": 61_203_991.0},
        }
    ]
    return record


CASES = {
    "finished_lora": (example(), {}),
    "interrupted": (interrupted(), {}),
    "full_fine_tune": (full_fine_tune(), {}),
    "adapter": (example(), {"kind": "adapter", "repo_id": "acme/tiny-refiner-adapter"}),
    "checkpoint": (example(), {"kind": "checkpoint", "step": 30}),
    "nothing_recorded": ({}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    record, arguments = CASES[name]
    card = render_card(record, **arguments)
    path = GOLDEN / f"{name}.md"
    if os.environ.get("HF_RLHF_REGENERATE"):
        path.write_text(card, encoding="utf-8")
    assert card == path.read_text(encoding="utf-8")


def test_the_shipped_example_is_what_its_record_renders():
    """To replace the example, copy what the demo pulled (`demo/pulled`) there and regenerate."""
    folder = card_folder() / "example"
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    card = render_card(record)
    if os.environ.get("HF_RLHF_REGENERATE"):
        (folder / "README.md").write_text(card, encoding="utf-8")
        reward_curve(record, folder / "reward_curve.png")
    assert card == (folder / "README.md").read_text(encoding="utf-8")
    assert all((folder / picture["file"]).exists() for picture in record["pictures"])
    assert RunRecord.from_json(record).to_json().keys() >= record.keys()
    assert "base_model: demo/tiny-refiner-base" in card, "the card as it is on the Hub"


def test_the_tutorial_shows_the_results_of_the_shipped_example():
    record = json.loads((card_folder() / "example" / "run.json").read_text(encoding="utf-8"))
    page = Path(__file__).parents[2] / "docs" / "tutorial" / "first-run.md"
    tutorial = page.read_text(encoding="utf-8")
    results = {name: record["evaluation"][name] for name in ("before", "after", "difference")}
    for metric in ("total", "citation_f1", "format"):
        before, after = (f"{results[name][metric]['mean']:.3f}" for name in ("before", "after"))
        low, high = (results["difference"][metric][end] for end in ("low", "high"))
        row = next(line for line in tutorial.splitlines() if line.startswith(f"│ {metric} "))
        assert [part.strip() for part in row.split("│")[2:4]] == [before, after]
        assert f"[{low:+.3f}, {high:+.3f}]" in row


def head(card):
    return yaml.safe_load(card.split("---\n")[1])


def section(card, heading):
    """Return the text under a heading, or what is folded under that summary."""
    if f"<summary>{heading}</summary>" in card:
        return card.split(f"<summary>{heading}</summary>\n")[1].split("\n</details>")[0]
    return card.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def headline(card):
    return next(line for line in card.splitlines() if line.startswith("**"))


class TestClaims:
    """A card says what was measured, and says so where nothing was."""

    def test_an_interval_over_zero_is_no_change(self):
        record = example()
        record["evaluation"]["difference"]["total"] |= {"low": -0.01}
        card = render_card(record)
        assert re.search(r"\| `total` .*\| no change shown \|", card)
        shown = "the reward was 0.689 after training, from 0.437 before it; no change shown"
        assert (
            f"On 128 held-out rows, {shown} (paired difference +0.252 [-0.010, +0.291])."
            in headline(card)
        )

    def test_without_a_composed_reward_the_trainers_first_metric_is_the_headline(self):
        record = example()
        evaluation = record["evaluation"]
        for stage in ("before", "after", "difference"):
            evaluation[stage]["loss"] = evaluation[stage].pop("total")
        evaluation["metrics"] = {"loss": "nats per token"}
        assert "`loss` rose from 0.437 to 0.689" in headline(render_card(record))
        del evaluation["before"]["loss"], evaluation["difference"]["loss"]
        card = render_card(record)
        assert "`loss` was 0.689 after training; no change shown, because" in headline(card)

    @pytest.mark.parametrize(
        ("low", "high", "n", "said"),
        [
            *((0.1, 0.2, 5, "rose"), (-0.2, -0.1, 5, "fell"), (0.0, 0.2, 5, "no change shown")),
            *((0.1, 0.1, 1, "one row, no interval"), (0.1, 0.1, 5, "no change shown")),
            (None, None, 0, "not compared"),
        ],
    )
    def test_verdicts(self, low, high, n, said):
        assert verdict(Estimate(mean=0.1, low=low, high=high, n=n)) == said

    def test_a_checkpoint_shows_nothing_from_later(self):
        record = example()
        record["samples"][2]["completion"] = "from step 60"
        record["samples"][3]["completion"] = "from the end"
        card = render_card(record, kind="checkpoint", step=30)
        assert "prefer a later step" in card
        assert "The run went on to step 60." in card
        assert "from step 60" not in card
        assert "from the end" not in card
        assert "0.689" not in card
        assert "Over 30 logged steps" in card
        assert "![" not in card


class TestSetup:
    def test_zero_beta_is_no_kl(self):
        record = example()
        record["config"]["beta"] = 0.0
        assert dict(setup(record))["KL"].startswith("none")

    def test_what_phases_leave_to_the_file_or_a_default_is_told(self):
        phases = [{"name": "a"}, {"name": "b", "learning_rate": 1e-5, "warmup_steps": 5}]
        config = {"learning_rate": 1e-5, "phases": phases}
        record = complete({"config": config, "defaults": {"warmup_steps": 0}})
        told = settings_of(record)
        assert told["learning_rate"] == 1e-5
        assert told["warmup_steps"] == "0 → 5"

    def test_first_and_last_are_means_of_tenths(self):
        history = [{"step": i, "rewards/total/mean": float(i)} for i in range(40)]
        during = reward_history(history, RewardSection())
        assert during["window"] == 4
        assert during["rows"][0]["first"] == 1.5
        assert during["rows"][0]["last"] == 37.5


class TestMetadata:
    def test_data_is_named_only_if_it_was_read_from_the_hub(self):
        record = full_fine_tune()
        assert head(render_card(record))["datasets"] == ["acme/refiner_rows"]
        record["data"]["report"]["commit"] = None  # a local folder may look like an id
        assert "datasets" not in head(render_card(record))

    @pytest.mark.parametrize("base", ["package://hf_rlhf_refiner/tiny_policy", "/home/me/model"])
    def test_a_base_that_is_not_on_the_hub(self, base):
        record = example()
        record["model"] |= {"base": base, "base_is_hub_id": False, "lineage": [base]}
        card = render_card(record)
        assert "base_model" not in head(card)
        assert "not on the Hub" in card
        compile(_python(card)[-1], "card", "exec")

    @pytest.mark.parametrize(
        ("author", "model", "expected"),
        [
            (None, "MIT", {"license": "mit"}),
            ("apache-2.0", "llama3.1", {"license": "apache-2.0"}),
            (
                *(None, "other"),
                {
                    **{"license": "other", "license_name": "same-as-base-model"},
                    "license_link": "https://huggingface.co/acme/tiny-policy",
                },
            ),
        ],
    )
    def test_licence(self, author, model, expected):
        record = example()
        record["author"]["license"] = author
        record["model"]["license"] = model
        assert license_of(record) == expected
        render_card(record)


class TestProblems:
    @pytest.mark.parametrize(
        ("head", "said"),
        [
            ({"license": "apache"}, "license: 'apache' is not one"),
            ({"license": "other"}, "license_name: `license: other` needs one"),
            ({"license": "mit", "license_link": "COPYING"}, "license_link"),
            *(({"language": n}, f"language: {n!r}") for n in ("English", False, "EN")),
        ],
    )
    def test_bad_heads(self, head, said):
        (problem,) = metadata_problems(head)
        assert said in problem

    @pytest.mark.parametrize("code", ["no", ["zu", "sr"], "code"])
    def test_languages_of_the_hub(self, code):
        assert metadata_problems({"language": code}) == []

    def test_a_bad_author_field_is_a_configuration_error(self):
        record = new_record(author={"language": "English"})
        with pytest.raises(ConfigError, match="card: language: 'English'"):
            render_card(record)

    def test_secrets_in_a_record_do_not_reach_the_card(self, monkeypatch):
        monkeypatch.setenv("ACME_API_KEY", "canary-1234")
        record = example()
        record["command"] += ["--hub_token", "opaque"]
        record["samples"][0]["completion"] = "canary-1234"
        record["config"]["base_url"] = "http://u:pw123@judge/v1"
        card = render_card(record)
        assert "canary" not in card
        assert "opaque" not in card
        assert "pw123" not in card


def _tokens(card):
    return MarkdownIt("commonmark").enable("table").parse(card.split("---\n", 2)[2])


def _python(card):
    return [
        token.content for token in _tokens(card) if token.type == "fence" and token.info == "python"
    ]


def _with_completion(text):
    record = example()
    record["training"]["history"] = []
    record["samples"][3]["completion"] = text
    record["samples"][3]["prompt"] = record["samples"][0]["prompt"] = text
    record["generation"] |= {"prompt": text, "completion": text}
    return record


HOSTILE = (
    *("---\nlicense: mit\n---", "````\n# Not a heading\n`````", "</details>", "a\r```\rb"),
    *("| a | b |\n|---|---|", "<script>x</script>", "\u202e\x1b[31mred\x00", "\ud83d"),
)


class TestHostileText:
    """Whatever a model writes, the card's structure stays, and the text is shown as it is."""

    def shape(self, text):
        tokens = _tokens(render_card(_with_completion(text)))
        return [(token.type, token.tag, token.markup.strip("`")) for token in tokens], [
            token.content for token in tokens if token.type == "fence" and token.info == "text"
        ]

    @pytest.mark.parametrize("text", HOSTILE)
    def test_a_completion_cannot_leave_its_block(self, text):
        expected, _ = self.shape("harmless")
        shape, fences = self.shape(text)
        assert shape == expected
        assert [fences[0], fences[1], fences[3]] == [visible(text) + "\n"] * 3

    @pytest.mark.parametrize("text", HOSTILE[4:6])
    def test_nor_can_what_a_report_counts_or_a_row_is_called(self, text):
        def shape(name):
            record = example()
            record["data"]["report"]["dropped"][name] = 3
            for sample in record["samples"]:
                sample["components"][name] = 0.5
            return [(token.type, token.tag) for token in _tokens(render_card(record))]

        assert shape(text) == shape("harmless")

    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.text(alphabet="`~-|<>/{}%#\\\n\r \tab$", max_size=40))
    def test_of_any_text(self, text):
        shown = fence(text)
        tokens = MarkdownIt("commonmark").parse(f"<details>\n\n{shown}\n\n</details>\n\nend\n")
        types = [token.type for token in tokens if token.type != "inline"]
        assert types == [
            *("html_block", "fence", "html_block", "paragraph_open", "paragraph_close")
        ]
        assert tokens[1].content.rstrip("\n") == visible(text).rstrip("\n")

    @settings(max_examples=20, deadline=None)
    @given(st.text(alphabet="`|\\<>*_[]()!#&;lt \n", max_size=20))
    def test_any_text_stays_in_its_cell(self, text):
        table = f"| a | b |\n|---|---|\n| {cell(code(text))} | {cell(plain(text))} |\n"
        tokens = MarkdownIt("commonmark").enable("table").parse(table)
        cells = [tokens[place + 1] for place, token in enumerate(tokens) if token.type == "td_open"]
        assert len(cells) == 2
        allowed = {"text", "code_inline", "text_special", "softbreak"}
        kinds = {child.type for one in cells for child in one.children or []}
        assert kinds <= allowed
        words = " ".join(text.split())
        assert (
            cells[1].children == []
            or "".join(child.content for child in cells[1].children) == words
        )


class TestRewardCurve:
    def test_draws_both_halves(self, tmp_path, monkeypatch):
        monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
        path = tmp_path / "curve.png"
        assert reward_curve(example(), path) is True
        assert "matplotlib.pyplot" not in sys.modules
        first = path.read_bytes()
        assert reward_curve(example(), path)
        assert path.read_bytes() == first

    def test_nothing_measured_nothing_drawn(self, tmp_path):
        assert reward_curve(complete({}), tmp_path / "curve.png") is False
        assert list(tmp_path.iterdir()) == []


def test_rewards_that_only_measured_are_not_said_to_have_trained():
    record = example()
    assert "Training did not use these rewards" not in render_card(record)
    record["reward"]["trains"] = False
    # What was logged of them says otherwise.
    assert "Training did not use these rewards" not in render_card(record)
    record["training"]["history"] = [
        {"step": 1, "loss": 0.5, "step_time/rollout": 1.0, "tokens_per_second": 9.0}
    ]
    text = render_card(record)
    assert "Training did not use these rewards" in text
    assert "- **Reward:**" not in text
    assert "left out of training" not in text
    assert "No reward was logged" not in text
    assert "| `loss` |" in text
    assert "per_second" not in section(text, "During training")
    assert "step_time" not in section(text, "During training")


def test_a_trainers_own_lines_come_first_or_replace_the_cores():
    record = example()
    record["method"]["facts"] = {"Learned reward": "`runs/reward`", "KL": "adaptive"}
    lines = setup(record)
    assert lines[0] == ("Learned reward", "`runs/reward`")
    assert dict(lines)["KL"] == "adaptive"
    assert "- **Learned reward:** `runs/reward`.\n" in render_card(record)
    record["reward"] |= {"rewards": [], "gates": [], "trains": True}
    text = render_card(record)
    assert "The run file names none; the training setup says what the trainer learns from." in text
    assert "learns from the data itself" not in text
