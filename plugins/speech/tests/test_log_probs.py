"""Log-probabilities of codec tokens against a slow loop on a tiny random Dia."""

import pytest
import torch

from hf_rlhf_speech.log_probs import delayed, delayed_log_probs

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def log_prob(logits, token):
    return float(logits.double().log_softmax(-1)[token])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def loop(model, start, codes, lengths, delays, inputs_of, conditions_of):
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
                inputs = inputs.T[None].contiguous()
                with torch.no_grad():
                    logits = model(decoder_input_ids=inputs, **conditions_of(row)).logits
                total += log_prob(logits[codebook, -1], int(frames[codebook, frame]))
        totals.append(total)
    return totals


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

    expected = loop(model, start, codes, lengths, delays, inputs_of, conditions_of)
    with torch.no_grad():
        measured = delayed_log_probs(
            model, codes, torch.tensor(lengths), delays,
            start=start, pad=pad, conditions={"input_ids": text},
        )  # fmt: skip
    assert measured.tolist() == pytest.approx(expected, abs=1e-5)


def test_frames_behind_the_end_are_not_counted():
    codes = torch.arange(8).reshape(1, 2, 4)
    inputs, labels = delayed(codes, torch.tensor([3]), [0, 1], start=98, pad=99)
    assert inputs.tolist() == [[[98, 0, 1, 2, 99], [98, 98, 4, 5, 6]]]
    assert labels.tolist() == [[[0, 1, 2, -100, -100], [-100, 4, 5, 6, -100]]]
