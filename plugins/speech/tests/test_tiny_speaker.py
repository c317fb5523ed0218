"""The shipped tiny speaker: what it samples is speech, of a quality that varies."""

from importlib.resources import files

import numpy as np
import pytest

from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.data.prompts import speech_prompts
from hf_rlhf_speech.speech import decode_completions
from hf_rlhf_speech.world.quality import KnownSpeechQuality

FOLDER = files("hf_rlhf_speech") / "tiny_speaker"


def test_the_tokenizer_keeps_codes_visible():
    from transformers import AutoTokenizer

    codec = load_codec("embedded")
    shipped = AutoTokenizer.from_pretrained(str(FOLDER))
    text = codec.form.write(np.array([[0, 1023], [512, 3]]), codec.size)
    ids = shipped(text).input_ids
    assert len(ids) == 6
    assert shipped.decode(ids, skip_special_tokens=True) == text
    prompts = speech_prompts("words").dataset["test"]["prompt"]
    assert max(len(shipped(prompt).input_ids) for prompt in prompts) == 9
    assert shipped.decode(shipped(prompts[0]).input_ids) == prompts[0]


@pytest.mark.slow
def test_samples_are_speech_of_the_text_and_differ_in_quality():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = speech_prompts("words", test_rows=32).dataset["test"][:]
    tokenizer = AutoTokenizer.from_pretrained(str(FOLDER))
    model = AutoModelForCausalLM.from_pretrained(str(FOLDER))
    batch = tokenizer(rows["prompt"], padding=True, return_tensors="pt")
    torch.manual_seed(0)
    with torch.inference_mode():
        ids = model.generate(**batch, do_sample=True, top_k=0, max_new_tokens=200)
    completions = tokenizer.batch_decode(
        ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )
    speech = decode_completions(completions)
    assert np.mean(["no end" in each.problems for each in speech]) < 0.1
    assert 1 < np.mean([each.seconds for each in speech]) < 2.5
    gold = KnownSpeechQuality()
    scores = gold(rows["prompt"], completions, rows["reference"])
    others = gold(rows["prompt"], completions, rows["reference"][1:] + rows["reference"][:1])
    assert 0.35 < np.mean(scores) < 0.85
    assert np.std(scores) > 0.12
    assert np.mean(others) < np.mean(scores) - 0.2  # it says what it was asked to
