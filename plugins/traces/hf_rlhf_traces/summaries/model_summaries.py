"""Summaries written by a model behind an OpenAI-compatible API, many requests at once."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf.rewards import Messages, NoText, OpenAIText, Text
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries import writer_prompt
from hf_rlhf_traces.summaries.summary import Malformed, Outcome, Row, summary_outcome


@dataclass
class _Request:
    number: int
    row: Row
    messages: Messages
    replies: int = 0


@dataclass
class ModelSummarizer:
    """Writes summaries with a model."""

    writer: OpenAIText
    form: Format

    def settings(self) -> Mapping[str, Any]:
        """Return the settings of a summary, without the server's address, which may change."""
        described = {k: v for k, v in self.writer.describe().items() if k != "base_url"}
        return {"by": "model", **described, "prompt_sha256": writer_prompt.prompt_sha256(self.form)}

    def usage(self) -> Mapping[str, float]:
        """Return requests, tokens and cost of this call."""
        return self.writer.usage()

    def summarize_all(
        self, samples: Iterable[tuple[int, Row]], save: Callable[[int, Outcome], None]
    ) -> None:
        """Request the summary of each sample; only requests in progress are in memory.

        Raises JudgeError for permanent errors, and for a server that stays away.
        """
        under_way: dict[int, _Request] = {}

        def requests() -> Iterator[Messages]:
            for index, (number, row) in enumerate(samples):
                under_way[index] = _Request(number, row, writer_prompt.messages(row, self.form))
                yield under_way[index].messages

        def on_reply(index: int, reply: Text | NoText) -> Messages | None:
            request, row = under_way[index], under_way[index].row
            request.replies += 1
            further: Messages | None = None
            if isinstance(reply, NoText):
                outcome: Outcome = {"failed": reply.cause, "detail": reply.reason}
            else:
                try:
                    summary, verbatim = writer_prompt.read_reply(reply.content, row, self.form)
                    outcome = summary_outcome(summary, verbatim, request.replies)
                except Malformed as error:
                    if request.replies == 1:
                        messages, content = request.messages, reply.content
                        return writer_prompt.repair(messages, content, str(error), self.form)
                    outcome, further = {"failed": "malformed", "detail": str(error)}, ()
            del under_way[index]
            save(request.number, outcome)
            return further

        asyncio.run(self.writer.write(requests(), on_reply))
