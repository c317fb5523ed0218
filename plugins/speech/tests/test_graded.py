"""Speech with a known grade, and the method file that finds weights by it."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from hf_rlhf.errors import DataError
from hf_rlhf_speech.data.graded import graded_speech
from hf_rlhf_speech.rewards.quality import AcousticQuality


@pytest.mark.slow
def test_grades_are_those_of_the_flaws_that_are_heard():
    rows = graded_speech(train_rows=6, renderings=3).dataset["train"]
    assert graded_speech(train_rows=6, renderings=3).dataset["train"][:] == rows[:]
    grades = np.array(rows["grade"])[:, 0]
    assert len(rows) == 18
    assert grades.max() == 1.0
    scores = np.array(AcousticQuality()(rows["prompt"], list(rows["completion"])))
    assert scores[grades == 1].mean() > scores[grades < 0.6].mean() + 0.3


def test_more_lines_than_there_are_is_refused():
    with pytest.raises(DataError, match="expected 1 to 600 lines"):
        graded_speech(train_rows=601)


def test_the_method_file_that_ships_is_valid():
    Method = pytest.importorskip("hf_rlhf_lab.method.file").Method
    file = files("hf_rlhf_speech").joinpath("runs/method/tiny.yaml")
    method = Method.read(Path(str(file)))
    assert len(method.spec.signals) == 8
