"""Log-probabilities of codec tokens against slow loops on tiny random models of transformers."""

import pytest
import torch

from hf_rlhf_speech.log_probs import (
    delayed,
    delayed_log_probs,
    depth_log_probs,
    flat_log_probs,
)

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def log_prob(logits, token):
    return float(logits.double().log_softmax(-1)[token])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_flat_tokens(side):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=30, intermediate_size=32, num_key_value_heads=2, **TINY)
    model = LlamaForCausalLM(config).eval()
    rows = [([3, 4, 5], [6, 7]), ([8], [9, 10, 11, 12])]
    expected = []
    for prompt, completion in rows:
        total = 0.0
        for index, token in enumerate(completion):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + completion[:index]])).logits[0, -1]
            total += log_prob(logits, token)
        expected.append(total)
    ids, attention, mask = (torch.zeros(2, 7, dtype=torch.long) for _ in range(3))
    for row, (prompt, completion) in enumerate(rows):
        length = len(prompt) + len(completion)
        start = 7 - length if side == "left" else 0
        ids[row, start : start + length] = torch.tensor(prompt + completion)
        attention[row, start : start + length] = 1
        mask[row, start + len(prompt) : start + length] = 1
    with torch.no_grad():
        measured = flat_log_probs(model, ids, attention, mask)
    assert measured.tolist() == pytest.approx(expected, abs=1e-5)


def musicgen(codebooks):
    from transformers import (
        EncodecConfig,
        MusicgenConfig,
        MusicgenDecoderConfig,
        MusicgenForConditionalGeneration,
        T5Config,
    )

    text = T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    audio = EncodecConfig(
        num_filters=4, hidden_size=8, codebook_size=16, upsampling_ratios=[2, 2], num_lstm_layers=1
    )
    decoder = MusicgenDecoderConfig(
        vocab_size=16, pad_token_id=16, bos_token_id=16, num_codebooks=codebooks, ffn_dim=32, **TINY
    )
    config = MusicgenConfig(text_encoder=text, audio_encoder=audio, decoder=decoder)
    return MusicgenForConditionalGeneration(config).eval()


def loop(model, start, codes, lengths, delays, inputs_of, conditions_of, frame_major=False):
    """Return the sums, one code at a time, each from what stands before it in the pattern."""
    totals = []
    for row, length in enumerate(lengths):
        frames, total = codes[row, :, :length], 0.0
        sequence = inputs_of(frames)  # [codebooks, 1 + length + max(delays)]
        assert (sequence[:, 0] == start).all()
        for codebook, delay in enumerate(delays):
            for frame in range(length):
                step = frame + delay
                assert sequence[codebook, step + 1] == frames[codebook, frame]
                inputs = sequence[:, : step + 1]
                inputs = inputs.T[None].contiguous() if frame_major else inputs
                with torch.no_grad():
                    logits = model(decoder_input_ids=inputs, **conditions_of(row)).logits
                total += log_prob(logits[codebook, -1], int(frames[codebook, frame]))
        totals.append(total)
    return totals


@pytest.mark.slow
def test_parallel_codebooks_of_musicgen():
    """Against the delay pattern that transformers itself generates by."""
    model, start, delays = musicgen(3), 16, [0, 1, 2]
    codes = torch.randint(0, 16, (2, 3, 6))
    lengths = [6, 5]
    text = torch.randint(1, 20, (2, 4))

    def inputs_of(frames):
        begun = torch.cat([torch.full((3, 1), start), frames], dim=1)
        _, pattern = model.decoder.build_delay_pattern_mask(begun, start, 1 + frames.shape[1] + 2)
        return pattern

    def conditions_of(row):
        return {"input_ids": text[row : row + 1]}

    expected = loop(model, start, codes, lengths, delays, inputs_of, conditions_of)
    with torch.no_grad():
        measured = delayed_log_probs(
            model, codes, torch.tensor(lengths), delays,
            start=start, pad=start, conditions={"input_ids": text},
        )  # fmt: skip
    assert measured.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_parallel_codebooks_of_dia():
    from transformers import (
        DiaConfig,
        DiaDecoderConfig,
        DiaEncoderConfig,
        DiaForConditionalGeneration,
    )
    from transformers.models.dia.processing_dia import DiaProcessor

    shape = {**TINY, "head_dim": 8, "intermediate_size": 32, "num_key_value_heads": 2}
    decoder = DiaDecoderConfig(
        vocab_size=20, num_channels=3, cross_num_attention_heads=2, cross_head_dim=8,
        cross_num_key_value_heads=2, cross_hidden_size=16, **shape,
    )  # fmt: skip
    encoder = DiaEncoderConfig(vocab_size=30, **shape)
    start, pad, delays = 18, 17, [0, 2, 3]
    config = DiaConfig(
        encoder_config=encoder, decoder_config=decoder, eos_token_id=16, pad_token_id=pad,
        bos_token_id=start,
        delay_pattern=delays,
    )  # fmt: skip
    model = DiaForConditionalGeneration(config).eval()
    codes = torch.randint(0, 16, (2, 3, 5))
    lengths = [5, 3]
    text = torch.randint(1, 30, (2, 4))

    def inputs_of(frames):
        padded = torch.nn.functional.pad(frames, (0, 3), value=pad).T[None]
        indices = DiaProcessor.build_indices(1, padded.shape[1], 3, delays)
        shifted = DiaProcessor.apply_audio_delay(padded, pad, start, indices)[0].T
        return torch.cat([torch.full((3, 1), start), shifted], dim=1)

    def conditions_of(row):
        return {"input_ids": text[row : row + 1]}

    expected = loop(model, start, codes, lengths, delays, inputs_of, conditions_of, True)
    with torch.no_grad():
        measured = delayed_log_probs(
            model, codes, torch.tensor(lengths), delays,
            start=start, pad=pad, conditions={"input_ids": text}, frame_major=True,
        )  # fmt: skip
    assert measured.tolist() == pytest.approx(expected, abs=1e-5)


def test_frames_behind_the_end_are_not_counted():
    codes = torch.arange(8).reshape(1, 2, 4)
    inputs, labels = delayed(codes, torch.tensor([3]), [0, 1], start=98, pad=99)
    assert inputs.tolist() == [[[98, 0, 1, 2, 99], [98, 98, 4, 5, 6]]]
    assert labels.tolist() == [[[0, 1, 2, -100, -100], [-100, 4, 5, 6, -100]]]


@pytest.mark.slow
def test_the_depth_decoder_of_csm():
    from transformers import CsmConfig, CsmForConditionalGeneration, MimiConfig

    shape = {**TINY, "intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 8}
    depth = {**shape, "backbone_hidden_size": 16, "num_codebooks": 4, "vocab_size": 16}
    codec = MimiConfig(
        hidden_size=16, num_filters=4, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=16, codebook_size=16, codebook_dim=8,
        vector_quantization_hidden_dimension=8, num_quantizers=4, upsampling_ratios=[2, 2],
        upsample_groups=16,
    )  # fmt: skip
    config = CsmConfig(
        num_codebooks=4, vocab_size=16, text_vocab_size=20, codec_config=codec.to_dict(),
        depth_decoder_config=depth, pad_token_id=0, codebook_pad_token_id=0, bos_token_id=1,
        audio_token_id=2, audio_eos_token_id=3, **shape,
    )  # fmt: skip
    model = CsmForConditionalGeneration(config).eval()
    text, frames = torch.randint(0, 20, (2, 3)), torch.randint(0, 16, (2, 4, 4))
    lengths = [4, 2]
    codes = torch.nn.functional.pad(frames, (0, 0, 3, 0))
    spoken = model.backbone_model.embed_tokens(frames)
    embeds = torch.cat([model.embed_text_tokens(text), spoken], dim=1)
    attention = torch.ones(2, 7, dtype=torch.long)
    attention[1, 5:] = 0
    mask = attention.clone()
    mask[:, :3] = 0
    expected = []
    for row, length in enumerate(lengths):
        total = 0.0
        for frame in range(length):
            with torch.no_grad():
                states = model.backbone_model(inputs_embeds=embeds[row : row + 1, : 3 + frame])
                state = states.last_hidden_state[:, -1]
                total += log_prob(model.lm_head(state)[0], int(frames[row, frame, 0]))
                for codebook in range(1, 4):
                    ids = torch.nn.functional.pad(frames[row, frame, :codebook], (1, 0))[None]
                    out = model.depth_decoder(input_ids=ids, backbone_last_hidden_state=state)
                    total += log_prob(out.logits[0, -1], int(frames[row, frame, codebook]))
        expected.append(total)
    with torch.no_grad():
        measured = depth_log_probs(model, embeds, attention, codes, mask)
    assert measured.tolist() == pytest.approx(expected, abs=1e-5)
