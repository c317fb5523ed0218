"""Speech to text by a server with OpenAI's `/audio/transcriptions`, with the judges' client.

recogniser = OpenAITranscription("openai/whisper-large-v3", "http://localhost:8000/v1")
texts = recogniser.transcribe([Path("speech.wav").read_bytes()])
"""

import base64
import io
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_rlhf.rewards.judges.client import Messages, Reply
from hf_rlhf.rewards.judges.text_generation import NoText, OpenAIText, Text
from hf_rlhf.rewards.loop import run_together

if TYPE_CHECKING:
    from openai import AsyncOpenAI


def _silence() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16_000, 0, "NONE", ""))
        writer.writeframes(bytes(2 * 16_000))
    return file.getvalue()


def _messages(clip: bytes) -> Messages:
    # As a message, so that cache, limit and retries treat it like any other request.
    return ({"role": "user", "content": base64.b64encode(clip).decode()},)


@dataclass
class OpenAITranscription(OpenAIText):
    """Transcribe clips on a server. Picklable; it holds no key.

    Raises JudgeError for settings that cannot work.
    """

    max_tokens: int | None = None
    seed: int | None = None
    max_concurrency: int = 16
    language: str = ""
    """Language of the speech, such as `de`; by default the server guesses."""
    display_name: str = "recogniser"

    def transcribe(self, clips: Sequence[bytes]) -> list[str | None]:
        """Return the text of each WAV file: "" without speech, None if the request failed.

        Raises JudgeError like `write`.
        """
        texts: list[str | None] = [None] * len(clips)

        def keep(index: int, reply: Text | NoText) -> None:
            if isinstance(reply, Text):
                texts[index] = reply.content
            elif reply.cause == "empty":
                texts[index] = ""

        run_together([self.write(map(_messages, clips), keep)])
        return texts

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return the form fields for the clip in `messages`."""
        language = {"language": self.language} if self.language else {}
        return {**super().body(messages), **language, "response_format": "json"}

    def probe(self) -> dict[str, Any]:
        """Return a request with a second of silence."""
        return self.body(_messages(_silence()))

    async def post(self, client: "AsyncOpenAI", fields: dict[str, Any]) -> str:
        """Send the clip as a form file."""
        (message,) = fields.pop("messages")
        clip = ("speech.wav", base64.b64decode(message["content"]), "audio/wav")
        return await client.post(
            "/audio/transcriptions",
            cast_to=str,
            body=fields,
            files=[("file", clip)],
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )

    def read(self, answer: Any) -> Reply:
        """Return the text in the JSON of a response."""
        if not isinstance(text := answer["text"], str):
            raise TypeError
        return Reply(text)
