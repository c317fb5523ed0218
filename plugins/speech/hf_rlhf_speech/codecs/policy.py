"""Requirements of a policy that speaks in a codec's tokens."""

from collections.abc import Iterator

from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.runs import Run
from hf_rlhf_speech.codecs.codec import FILE, check_codec, load_codec


def name_problems(name: str) -> list[Problem]:
    """Return why a model cannot write in the codec of this name."""
    try:
        check_codec(name)
    except ConfigError as error:
        return list(error.problems)
    if name == FILE:
        return [Problem("codec", "is `file`: no policy writes sound files.", "Name a codec.")]
    return []


def codec_problems(run: Run, name: str) -> Iterator[Problem]:
    """Yield why a policy cannot speak in a codec's tokens, or why rewards would not hear it."""
    if problems := name_problems(name):
        yield from problems
        return
    yield from _reward_problems(run, name)
    codec = load_codec(name)
    form, known = codec.form, run.tokenizer.get_vocab()
    tokens = form.tokens(codec.codebooks * codec.size)
    tokens += [token for token in (form.start, form.end) if token]
    if missing := [token for token in tokens if token not in known]:
        yield Problem(
            "model_name_or_path",
            f"the vocabulary lacks {len(missing):,} of the {len(tokens):,} tokens of the codec "
            f"{name!r}, such as {missing[0]}.",
            "Name a model that speaks in this codec, or the codec that the model speaks in.",
        )
    elif special := set(tokens[: codec.codebooks * codec.size]) & set(
        run.tokenizer.all_special_tokens
    ):
        yield Problem(
            "model_name_or_path",
            f"{len(special):,} tokens of the codec {name!r} are special tokens of the tokenizer, "
            "which completions are decoded without.",
            "Save a tokenizer with `special: false` for them.",
        )


def _reward_problems(run: Run, name: str) -> Iterator[Problem]:
    for part in (*run.reward.rewards, *run.reward.gates) if run.reward else ():
        theirs = getattr(part.reward, "codec", name)
        if theirs != name:
            what = f"{part.label!r} decodes {theirs!r}, and the policy speaks in {name!r}."
            yield Problem("rewards", what, f"Give it `codec: {name}`.")
