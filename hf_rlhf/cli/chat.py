"""``hf-rlhf chat MODEL``: talk to what was trained, on plain transformers, in one process.

`transformers chat` needs a server beside it (`transformers serve`), a chat template and a terminal,
and has no switch for adapters.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_rlhf.errors import HfRlhfError, ModelError, did_you_mean
from hf_rlhf.formatting import terminal_message, visible

HELP = (
    "/adapter NAME switches, /adapter lists, /clear forgets, /help, /exit; "
    "<<< begins and >>> ends several lines"
)
BASE = "base"


def chat_main(argv: Sequence[str]) -> int:
    """Talk to a model: a run folder, a checkpoint, an adapter or a Hub id."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf chat",
        description=f"Chat with a trained model. {HELP}. Lines may also come from a pipe.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a run or phase folder, a checkpoint, an adapter, a Hub id"
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=WHERE",
        help="another adapter on the same base, for /adapter NAME; repeatable",
    )
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--plain",
        action=argparse.BooleanOptionalAction,
        help="each line is a prompt of its own, without the chat template; default: as the run's "
        "prompts were",
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="default: 0, greedy")
    parser.add_argument("--top_p", type=float, default=1.0)
    parser.add_argument("--max_new_tokens", type=int, default=512, help="default: %(default)s")
    chosen = parser.parse_args(argv)

    from transformers.utils import logging

    from hf_rlhf.config import EvaluationSpec, bind
    from hf_rlhf.errors import ConfigError
    from hf_rlhf.evaluation.task import Candidate
    from hf_rlhf.training import quiet_libraries

    quiet_libraries()
    logging.disable_progress_bar()
    names = ("temperature", "top_p", "max_new_tokens")
    values, problems = bind(
        EvaluationSpec, {name: getattr(chosen, name) for name in names}, where="--{}".format
    )
    if problems:
        raise ConfigError(problems)
    others = {name: where for name, (where, *_) in Candidate.parse(chosen.adapter).items()}
    with ExitStack() as stack:
        chat = Chat.open(stack, chosen.model, others, EvaluationSpec(**values))
        chat.system = chosen.system
        chat.plain = chat.plain if chosen.plain is None else chosen.plain
        if chat.plain and chat.system:
            raise HfRlhfError("--system needs a chat template, and each line is a plain prompt.")
        if not chat.plain and not chat.tokenizer.chat_template:
            raise HfRlhfError(f"{chosen.model} has no chat template. Leave --no-plain out.")
        form = "each line is a prompt of its own" if chat.plain else "a conversation"
        print(f"{chosen.model} ({chat.active}), {form}. {HELP}", file=sys.stderr)
        for text in chat_turns(_lines()):
            if text in ("/exit", "/quit"):
                break
            try:
                chat.take(text)
            except HfRlhfError as error:
                print(terminal_message(f"error: {error}", sys.stderr), file=sys.stderr, flush=True)
    return 0


@dataclass
class Chat:
    """A loaded model, the adapters that can be switched on, and a conversation."""

    model: Any
    tokenizer: Any
    sampling: Any
    positions: int | None
    base: str
    adapters: dict[str, str | None]
    """By name where each is; None for the base alone. Those of other steps load when used."""
    active: str
    template: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    plain: bool = False
    turns: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def open(cls, stack: ExitStack, where: str, others: Mapping[str, Any], sampling: Any) -> "Chat":
        """Load a model until `stack` closes. Raises ModelError."""
        from accelerate import PartialState

        from hf_rlhf.evaluation.saved_models import find_saved
        from hf_rlhf.storage import RECORD_NAME, load_record

        whole = None
        try:
            saved = find_saved({"adapter": where})
        except ModelError:  # whole weights; what is neither is explained by this
            saved = whole = find_saved(where)
        folder = Path(where)
        own = folder.resolve().name if folder.exists() else where
        adapters: dict[str, str | None] = {own if whole else BASE: None}
        if whole is None:
            adapters |= {own: saved.adapter, **_beside(folder), **others}
        elif others:
            raise ModelError(f"--adapter: {where} is a full model. Name the base of the adapters.")
        # A checkpoint lies two folders below its run's record, an adapter one.
        runs = [each for each in (folder, *folder.parents[:2]) if (each / RECORD_NAME).exists()]
        record = load_record(runs[0]) if runs else None
        tokenizer = saved.tokenizer()
        model = stack.enter_context(
            replace(saved, adapter=None).load(PartialState().device, dtype="auto")
        )
        chat = cls(model, tokenizer, sampling, saved.positions(), saved.model, adapters, own)
        chat.template = (record.config.get("chat_template_kwargs") if record else None) or {}
        is_text = record is not None and record.data.conversational is False
        chat.plain = is_text or not tokenizer.chat_template
        chat.switch(own)
        return chat

    def take(self, text: str) -> None:
        """Answer one turn, or follow a command."""
        command, _, name = text.partition(" ")
        if command == "/adapter" and name.strip():
            self.switch(name.strip())
        elif command == "/adapter":
            for name in self.adapters:
                print(f"{'*' if name == self.active else ' '} {name}")
        elif command == "/clear":
            self.turns.clear()
        elif command.startswith("/"):
            print(HELP)
        elif text:
            self._answer(text)

    def switch(self, name: str) -> None:
        """Use another adapter, or none; the conversation goes on. Raises ModelError."""
        from hf_rlhf.evaluation.saved_models import find_saved

        if name not in self.adapters:
            hint = did_you_mean(name, self.adapters)
            names = ", ".join(self.adapters)
            raise ModelError(f"no adapter is named {name!r}{hint}. There are: {names}.")
        if (where := self.adapters[name]) is not None:
            from peft import PeftModel

            key = f"adapter_{[*self.adapters].index(name)}"  # peft takes no dots in a name
            if not isinstance(self.model, PeftModel):
                folder = find_saved({"base": self.base, "adapter": where}).adapter
                self.model = PeftModel.from_pretrained(self.model, folder, adapter_name=key).eval()
            elif key not in self.model.peft_config:
                folder = find_saved({"base": self.base, "adapter": where}).adapter
                self.model.load_adapter(folder, adapter_name=key)
            self.model.set_adapter(key)
        self.active = name

    def _answer(self, text: str) -> None:
        from hf_rlhf.evaluation.generation import generate
        from hf_rlhf.models import prompt_ids

        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [*self.turns, {"role": "user", "content": text}]
        prompt: Any = text if self.plain else [*system, *turns]
        (ids,) = prompt_ids(self.tokenizer, [prompt], self.template)
        room = self.sampling.max_new_tokens
        if self.positions is not None and (room := min(room, self.positions - len(ids))) < 1:
            raise ModelError(
                f"{len(ids)} tokens fill the model's {self.positions} positions. /clear forgets."
            )
        is_base = self.adapters[self.active] is None and hasattr(self.model, "disable_adapter")
        with self.model.disable_adapter() if is_base else nullcontext():
            model = (
                self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
            )
            (completion,) = generate(
                *(model, self.tokenizer, [ids], self.sampling, room),
                seeds=[len(ids)],
                on_text=print_safely,
            )
        print(flush=True)
        if completion.truncated:
            print(f"(cut at {room} tokens)", file=sys.stderr, flush=True)
        self.turns = [*turns, {"role": "assistant", "content": completion.text}]


def print_safely(text: str) -> None:
    """Print a piece of a reply, control characters as escapes."""
    print(visible(text), end="", flush=True)


def _beside(run: Path) -> dict[str, str]:
    """Return the adapters in a run folder beside its own: of its phases and checkpoints."""
    from hf_rlhf.storage.checkpoints import step_of, valid_checkpoints

    phases = {path.parent.name: str(path) for path in sorted(run.glob("phases/*/adapter"))}
    steps = valid_checkpoints(run / "checkpoints") if (run / "checkpoints").is_dir() else []
    return {**phases, **{f"step-{step_of(path)}": str(path) for path in steps}}


def chat_turns(lines: Iterable[str]) -> Iterator[str]:
    """Yield what was entered: a line, or the lines between <<< and >>>, or the end."""
    block: list[str] | None = None
    for line in lines:
        text = line.strip()
        if block is None and text == "<<<":
            block = []
        elif block is None:
            yield text
        elif text == ">>>":
            yield "\n".join(block)
            block = None
        else:
            block.append(line.rstrip("\n"))
    if block:
        yield "\n".join(block)


def _lines() -> Iterator[str]:
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        import readline  # noqa: F401 - gives `input` its history
    while True:
        try:
            yield input(prompt)
        except EOFError:
            return
