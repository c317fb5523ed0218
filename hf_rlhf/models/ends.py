"""Tokens that stop generation: a trained response must end with a stop token.

Plain `generate` stops only at the end tokens of the generation config; training and evaluation also
stop at the tokenizer's. So every saved model lists the tokenizer's end token in its generation
config.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import Problem
from hf_rlhf.models.lengths import model_config
from hf_rlhf.models.locate import read_json
from hf_rlhf.storage.files import atomic_write_json

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

_MARK = "Zq7xK"
"""A marker answer that no chat template contains."""
_CALL = "a call of a tool"


def end_tokens(tokenizer: Any, generation_config: Any) -> frozenset[int]:
    """Return the end tokens: the tokenizer's end-of-sequence token, and the model's."""
    return frozenset({tokenizer.eos_token_id, *_as_list(generation_config.eos_token_id)} - {None})


def _as_list(ids: int | list[int] | None) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def end_problems(run: "Run") -> Iterator[Problem]:
    """Yield a problem if the model would learn responses that end without a stop token.

    Messages end like in the chat template, text with the tokenizer's end-of-sequence token.
    """
    if not (run.writes_text and run.reads_tokens) or run.trainer_class.auto_class is not None:
        return
    tokenizer, ends = run.tokenizer, generation_ends(run)
    yield from _vllm(run)
    row = run.dataset["train"][0]
    answers = run.read_columns & {"completion", "chosen", "messages"}
    plain = any(isinstance(row.get(name), str) for name in answers)
    if not ends or (plain and tokenizer.eos_token_id is None):
        what = "its tokenizer has no end-of-sequence token to end a response with."
        yield Problem("model_name_or_path", what, "Write `eos_token: TOKEN`, one of its tokens.")
        return
    stops = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(sorted(ends))))
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    for turn, closing in _closings(run, row).items():
        ids = tokenizer(closing, add_special_tokens=False)["input_ids"]
        end = next((each for each in ids if each in special), None)
        # A policy ends its own samples, so a template without an ending is no problem there.
        if ends.intersection(ids) or (end is None and not answers):
            continue
        if turn == _CALL and not _has_calls(run, answers):
            continue
        token = tokenizer.convert_ids_to_tokens(end) if end is not None else None
        cure = f"Write `eos_token: {token}`."
        if token is None:
            cure = f"Use a chat template that closes the assistant's turns with {stops}."
        elif turn == _CALL:
            cure = f"Add {end}, which is {token}, to `eos_token_id` in its generation_config.json."
        yield Problem(
            "model_name_or_path" if run.spec.chat_template is None else "chat_template",
            f"the chat template ends {turn} with {closing!r}, and generation stops at {stops} "
            "only: the trained model would never stop.",
            cure,
        )
        return


def _has_calls(run: "Run", answers: Collection[str]) -> bool:
    """Return whether the policy or the training data may call tools."""
    if run.toolset is not None or not answers:
        return run.toolset is not None
    for row in run.dataset["train"]:
        conversations = (row[name] for name in answers if isinstance(row.get(name), list))
        if row.get("tools") or any(
            turn.get("tool_calls") for each in conversations for turn in each
        ):
            return True
    return False


def _vllm(run: "Run") -> Iterator[Problem]:
    """Yield a problem if vLLM, which reads the base's tokenizer, would not stop at the end."""
    training, end = run.training, run.tokenizer.eos_token_id
    if run.spec.eos_token is None or not getattr(training, "use_vllm", False):
        return
    if not hasattr(training, "generation_kwargs") or end in _own_ends(run):
        return
    if end not in ((training.generation_kwargs or {}).get("stop_token_ids") or ()):
        yield Problem(
            "eos_token",
            f"is {run.spec.eos_token}, but vLLM stops only at the end tokens of the base.",
            f"Write `generation_kwargs: {{stop_token_ids: [{end}]}}` as well.",
        )


def _closings(run: "Run", row: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat template's endings of an answer and of a call."""
    template = run.trainer_class.row_template(run) or run.tokenizer.chat_template
    is_chat = any(isinstance(row.get(name), list) for name in run.read_columns)
    if not template or not is_chat:
        return {}
    kwargs = getattr(run.training, "chat_template_kwargs", None) or {}
    call = {"type": "function", "function": {"name": _MARK, "arguments": {_MARK: _MARK}}}
    turns: dict[str, dict[str, Any]] = {"an answer": {"content": _MARK}}
    turns[_CALL] = {"content": "", "tool_calls": [call]}
    closings = {}
    for name, turn in turns.items():
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", **turn}]
        try:
            text = run.tokenizer.apply_chat_template(
                messages, tokenize=False, chat_template=template, **kwargs
            )
        except Exception:  # noqa: BLE001 - a template may raise anything; rows are tried elsewhere
            continue
        _, mark, closing = str(text).rpartition(_MARK)
        if mark:
            closings[name] = closing
    return closings


def generation_ends(run: "Run") -> frozenset[int]:
    """Return `end_tokens` of the base from its JSON files alone."""
    return frozenset({*_own_ends(run), run.tokenizer.eos_token_id} - {None})


def _own_ends(run: "Run") -> list[int]:
    from transformers import GenerationConfig

    revision = run.model.model_revision
    try:
        config = GenerationConfig.from_pretrained(run.model_path, revision=revision)
    except OSError:
        config = GenerationConfig.from_model_config(model_config(run))
    return _as_list(config.eos_token_id)


def list_end(folder: Path) -> None:
    """Add the end-of-sequence token of a saved model's tokenizer to its generation config.

    Only files are read, since a tokenizer may contain code. Models that do not generate text are
    unchanged.
    """
    tokenizer = _json(folder / "tokenizer_config.json")
    config, saved = _json(folder / "config.json"), folder / "generation_config.json"
    end = tokenizer.get("eos_token")
    token = _token_id(folder, end["content"] if isinstance(end, dict) else end)
    if token is None or any("Classification" in name for name in config.get("architectures") or ()):
        return
    listed = _json(saved)
    ends = _as_list((listed or config.get("text_config") or config).get("eos_token_id"))
    if token not in ends:
        listed = listed or {name: config.get(name) for name in ("bos_token_id", "pad_token_id")}
        atomic_write_json(saved, {**listed, "eos_token_id": [token, *ends]})


def _token_id(folder: Path, token: str | None) -> int | None:
    content = _json(folder / "tokenizer.json")
    added = {each["content"]: each["id"] for each in content.get("added_tokens") or ()}
    vocabulary = (content.get("model") or {}).get("vocab")
    result = added.get(token, vocabulary.get(token) if isinstance(vocabulary, dict) else None)
    return None if result is None else int(result)


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
