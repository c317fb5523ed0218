"""Real pairs under a `max_length` made for a tiny world: counted, and refused, before training."""

import os
from pathlib import Path

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.preflight_data import data_lines
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf_classic.encoding import encode_pair, encode_response
from hf_rlhf_classic.row_lengths import SIDES

DATA = Path(
    os.environ.get("HF_RLHF_DATA") or Path(__file__).resolve().parents[3] / "../shared/data"
)
HH = DATA / "hh_rlhf" / "harmless-base-test.jsonl.gz"
MOST = 128

pytestmark = [
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not HH.is_file(), reason=f"{HH} is absent (set HF_RLHF_DATA)"),
]


def file_of(plugin, tmp_path, **settings):
    return RunFile.from_mapping(
        {
            "plugin": plugin,
            "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
            "dataset": {
                **{"name": "preference", "path": str(HH)},
                **{"test_rows": 40, "max_train_rows": 80},
            },
            "evaluation": {"rows": 20},
            "output_dir": str(tmp_path / "run"),
            **{"max_length": MOST, "max_steps": 1, "use_cpu": True, "bf16": False},
            **settings,
        }
    )


@pytest.mark.parametrize("plugin", ["reward", "dpo"])
def test_pairs_that_are_too_long_are_counted_and_refused(plugin, tmp_path):
    allowed = {"max_dropped_share": 1, "max_cut_share": 1}
    run = resolve_run(file_of(plugin, tmp_path, **allowed))
    rows, tokenizer = run.dataset["train"].to_list(), run.tokenizer
    if plugin == "reward":
        both = [[encode_response(tokenizer, row, row[side]) for side in SIDES] for row in rows]
        kept = [max(len(one.ids) for one in pair) <= MOST for pair in both]
    else:
        both = [encode_pair(tokenizer, row, SIDES) for row in rows]
        kept = [list(pair[0].counted).count(False) < MOST for pair in both]
    cut = sum(
        keep and max(len(one.ids) for one in pair) > MOST
        for keep, pair in zip(kept, both, strict=True)
    )
    counts = run.trainer_class.row_counts(run)
    assert len(rows) == counts["train"].rows == 80
    assert counts["train"].used == sum(kept)
    assert sum(counts["train"].cut.values()) == cut
    assert counts["test"].rows == 20, "of the held-out rows those that are measured"
    assert [line.split(":")[0] for line in data_lines(run)] == ["rows", "train", "test"]
    lost = 80 - sum(kept)
    assert lost > 8
    with pytest.raises(ConfigError, match=rf"{lost} of 80 rows of train \(\d+%\) would be dropped"):
        resolve_run(file_of(plugin, tmp_path))
