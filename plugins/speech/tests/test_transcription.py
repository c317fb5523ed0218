"""`intelligible` by other recognisers: models of transformers, and a server."""

import email
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from hf_rlhf.errors import ConfigError, JudgeError, ModelError
from hf_rlhf.testing import check_reward
from hf_rlhf_speech.audio import RATE, write_wav
from hf_rlhf_speech.rewards.recognition import Intelligible
from hf_rlhf_speech.rewards.transcription import local_recogniser, units_of


class Handler(BaseHTTPRequestHandler):
    """Answers by the duration of the clip: what the test's server is told to."""

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        form = email.message_from_bytes(
            f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode() + content
        )
        fields = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in form.get_payload()
        }
        self.server.forms.append((self.path, fields, self.headers["Authorization"]))
        tenths = round((len(fields["file"]) - 44) / 2 / RATE * 10)
        status, answer = self.server.answers[tenths]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_RLHF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPEECH_KEY", "key-of-the-test")
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.forms = []
    http.answers = {}
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield http
    http.shutdown()
    http.server_close()


def settings_of(server, **rest):
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return {"model": "whisper", "base_url": url, "api_key_env": "SPEECH_KEY", "retries": 0, **rest}


def clips(folder, *tenths):
    files = [str(folder / f"{each}.wav") for each in tenths]
    for file, each in zip(files, tenths, strict=True):
        write_wav(file, 0.1 * np.sin(np.arange(each * RATE // 10) / 9), RATE)
    return files


def test_a_server_hears_and_its_failure_is_no_number(server, tmp_path):
    server.answers = {
        10: (200, {"text": "Grüße, Welt!"}),
        11: (200, {"text": ""}),
        12: (400, {"error": {"message": "no sound"}}),
        13: (200, {"text": "Grüße Mond"}),
    }
    files, logged = clips(tmp_path, 10, 11, 12, 13), {}
    reward = Intelligible("file", server=settings_of(server), language="de")
    columns = {"text": ["grüße welt"] * 4, "log_metric": logged.__setitem__}
    assert reward([""] * 4, files, **columns) == [1.0, 0.0, None, 0.5]
    assert logged["speech/nothing_heard"] == logged["speech/not_transcribed"] == 0.25
    path, fields, key = server.forms[0]
    assert (path, key) == ("/v1/audio/transcriptions", "Bearer key-of-the-test")
    assert fields["file"].startswith(b"RIFF")
    rest = {name: value.decode() for name, value in fields.items() if name != "file"}
    assert rest == {
        **{"model": "whisper", "temperature": "0.0", "language": "de", "response_format": "json"}
    }
    count = len(server.forms)
    again = Intelligible("file", server=settings_of(server), language="de")
    assert again([""], files[:1], text=["grüße welt"]) == [1.0]
    assert len(server.forms) == count, "the reply is in the cache"


def test_a_request_that_fails_is_sent_again(server, tmp_path):
    server.answers = {10: (500, {})}
    answers = iter([(500, {}), (200, {"txt": "no text"}), (200, {"text": "yes"})])

    class InTurn(dict):
        def __getitem__(self, _):
            return next(answers)

    server.answers = InTurn()
    reward = Intelligible("file", server=settings_of(server, retries=2))
    assert reward([""], clips(tmp_path, 10), text=["Yes."]) == [1.0]


def test_a_key_that_is_refused_stops_the_run(server, tmp_path):
    server.answers = {10: (401, {"error": {"message": "wrong key"}})}
    reward = Intelligible("file", server=settings_of(server))
    with pytest.raises(JudgeError, match="recogniser .* at .* refused the key"):
        reward([""], clips(tmp_path, 10), text=["Yes."])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "characters"}, "unit has no effect: pocketsphinx hears English words"),
        ({"model": "a/b", "server": {}}, "both set"),
        ({"server": {}}, r"server.model: is missing"),
        ({"server": {"model": "x", "retrys": 1}}, r"server.retrys.*Did you mean `retries`"),
        ({"server": {"model": "x", "base_url": "ftp://x"}}, "is not an address"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Intelligible(**settings)


@pytest.fixture(scope="module")
def ctc(tmp_path_factory):
    """A CTC model that writes `ja` for any sound: two letters in turn would need training."""
    import torch
    from transformers import (
        Wav2Vec2Config,
        Wav2Vec2CTCTokenizer,
        Wav2Vec2FeatureExtractor,
        Wav2Vec2ForCTC,
    )

    folder = tmp_path_factory.mktemp("ctc")
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", "J", "A"]
    (folder / "vocab.json").write_text(json.dumps({each: n for n, each in enumerate(letters)}))
    Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Wav2Vec2Config(
        vocab_size=len(letters),
        intermediate_size=8,
        conv_dim=(8,) * 7,
        **sizes,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(config)
    torch.nn.init.zeros_(model.lm_head.weight)
    with torch.no_grad():
        model.lm_head.bias.copy_(torch.tensor([0.0, 0, 0, 0, 0, 9, 0]))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperTokenizer,
    )

    folder = tmp_path_factory.mktemp("whisper")
    texts = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>"]
    texts += ["<|translate|>", "<|notimestamps|>", "a", "b", "c"]
    (folder / "vocab.json").write_text(json.dumps({each: n for n, each in enumerate(texts)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = WhisperTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    special = {"additional_special_tokens": texts[1:7], "pad_token": texts[0]}
    tokenizer.add_special_tokens(special)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(texts),
        num_mel_bins=8,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_source_positions=50,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    languages = {"lang_to_id": {"<|en|>": 2, "<|de|>": 3}, "is_multilingual": True}
    tasks = {"task_to_id": {"transcribe": 4, "translate": 5}, "no_timestamps_token_id": 6}
    ends = {"pad_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 1, "max_length": 12}
    model.generation_config = GenerationConfig(**ends, **languages, **tasks)
    model.save_pretrained(folder)
    return folder


def test_a_ctc_model_hears_in_words_and_in_characters(ctc, tmp_path):
    files = clips(tmp_path, 10, 12, 5)
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    write_wav(tmp_path / "short.wav", np.full(60, 0.1), RATE)
    reward = Intelligible("file", model=str(ctc))
    names = [*files, str(tmp_path / "broken.wav"), str(tmp_path / "short.wav")]
    texts = ["J!", "a", "j a", "j", "j"]
    assert reward([""] * 5, names, text=texts) == [1.0, 0.0, 0.5, None, 1.0]
    letters = Intelligible("file", model=str(ctc), unit="characters")
    assert letters([""] * 3, files, text=["J", "ja", None]) == [1.0, 0.5, None]


def test_a_whisper_model_keeps_the_rules(whisper, tmp_path):
    files = clips(tmp_path, 6, 8)
    columns = {"text": ["a b", "c"]}
    check_reward(Intelligible("file", model=str(whisper)), completions=files, columns=columns)
    check_reward(
        Intelligible("file", model=str(whisper), language="de", unit="characters"),
        completions=files,
        columns=columns,
    )


def test_a_model_that_is_no_recogniser_is_refused(ctc, tmp_path):
    from transformers import AutoModel, LlamaConfig

    bare = AutoModel.from_pretrained(ctc)
    bare.save_pretrained(tmp_path)
    for file in ctc.glob("*.json"):
        if file.name != "config.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match=r"lacks weights for lm_head"):
        local_recogniser(str(tmp_path), None, "cpu", None)
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"llama has no head for CTC or text.*Name a CTC model"):
        local_recogniser(str(tmp_path), None, "cpu", None)
    with pytest.raises(ModelError, match="takes no language"):
        local_recogniser(str(ctc), None, "cpu", "de")


def test_a_language_that_whisper_does_not_know_is_refused(whisper):
    language = "fr"
    with pytest.raises(ModelError, match=rf"does not know the language '{language}'.* Leave"):
        local_recogniser(str(whisper), None, "cpu", language)


def test_units_are_without_case_punctuation_and_symbols():
    assert units_of("Don’t — STOP, the 3 cats!", "words") == ["dont", "stop", "the", "3", "cats"]
    assert units_of("don't stop", "words") == ["dont", "stop"]
    assert units_of("你好，世界。", "characters") == list("你好世界")
    assert units_of("well-known", "words") == ["well", "known"]
    assert units_of("Straße", "words") == units_of("STRASSE", "words")


def test_texts_of_another_language_are_noted():
    def notes(*texts, **settings):
        run = SimpleNamespace(dataset={"train": Dataset.from_dict({"text": texts})})
        return list(Intelligible(**settings).notes(run))

    german = ("Der schnelle Fuchs springt über den faulen Hund", "Heute regnet es den ganzen Tag")
    (note,) = notes(*german)
    assert "of the words of the texts are in pocketsphinx' English dictionary" in note
    assert notes("The quick fox jumps over the lazy dog", "It rains all day") == []
    assert notes(*german, server={"model": "whisper"}) == []
