"""The shipped tiny speaker: what it samples is speech, of a quality that varies."""

from importlib.resources import files

import numpy as np

from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.data.prompts import speech_prompts

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
