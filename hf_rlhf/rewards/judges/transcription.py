"""Speech to text by a server with OpenAI's `/audio/transcriptions`, by the client that judges use.

recogniser = OpenAITranscription("openai/whisper-large-v3", "http://localhost:8000/v1")
texts = recogniser.transcribe([Path("speech.wav").read_bytes()])
"""

import base64
import io
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.rewards.judges.client import Messages
from hf_rlhf.rewards.judges.endpoint import Endpoint, Reply
from hf_rlhf.rewards.judges.text_generation import NoText, OpenAIText, Text
from hf_rlhf.rewards.loop import run_together

_BOUNDARY = "hf-rlhf-3f1c9a7be04d4e5286d05b9a"


def _silence() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16_000, 0, "NONE", ""))
        writer.writeframes(bytes(2 * 16_000))
    return file.getvalue()


def _messages(clip: bytes) -> Messages:
    # In a message, so that the cache, the limits and the retries treat it as any other request.
    return ({"role": "user", "content": base64.b64encode(clip).decode()},)


class _Transcriptions(Endpoint):
    """Sends the clip of the only message as a file in a form."""

    path = "/audio/transcriptions"
    content_type = f"multipart/form-data; boundary={_BOUNDARY}"
    product = "transcription"

    def encode(self, body: Mapping[str, Any]) -> bytes:
        fields = {**body, **body.get("extra_body", {})}
        (message,) = fields.pop("messages")
        fields.pop("extra_body", None)
        start = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
        texts = "".join(f'{start}"{key}"\r\n\r\n{value}\r\n' for key, value in fields.items())
        head = f'{start}"file"; filename="speech.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        clip = base64.b64decode(message["content"])
        return b"".join([(texts + head).encode(), clip, f"\r\n--{_BOUNDARY}--\r\n".encode()])

    def read(self, answer: Any) -> Reply:
        if not isinstance(text := answer["text"], str):
            raise TypeError
        return Reply(text, False, False, 0, 0)


@dataclass
class OpenAITranscription(OpenAIText):
    """Ask a server for the text of clips. Picklable; it holds no key.

    Raises JudgeError for settings that cannot work.
    """

    max_tokens: int | None = None
    seed: int | None = None
    max_concurrency: int = 16
    language: str = ""
    """Of the speech, such as `de`; by default the server guesses."""
    display_name: str = "recogniser"

    endpoint_class = _Transcriptions
    probe = _messages(_silence())

    def transcribe(self, clips: Sequence[bytes]) -> list[str | None]:
        """Return the text of each WAV file: empty if no word is heard, None if the request failed.

        Raises JudgeError as `write` does.
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
        """Return the fields of the form that sends the clip in `messages`."""
        language = {"language": self.language} if self.language else {}
        return {**super().body(messages), **language, "response_format": "json"}

    def _check(self) -> None:
        super()._check()
        self._require("tokens_per_minute", self.tokens_per_minute is None, "left out: none count")
