"""What a client may ask of the server, as OpenAI's chat completions have it."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (0,)),
    **dict.fromkeys(("logprobs", "store"), (False,)),
    **dict.fromkeys(("logit_bias", "metadata"), ({},)),
    **dict.fromkeys(("tools", "functions"), ([],)),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
}
"""Values by which a client asks for nothing: many send them always."""
MOST_STOPS = 4


class Message(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "user", "assistant"]
    content: str

    @field_validator("role", mode="before")
    @classmethod
    def _developer(cls, role: Any) -> Any:
        return "system" if role == "developer" else role

    @field_validator("content", mode="before")
    @classmethod
    def _text(cls, content: Any) -> Any:
        """Put the parts of a text together."""
        if not isinstance(content, list):
            return content
        texts = [part.get("text") for part in content if _is_text(part)]
        if len(texts) < len(content):
            raise ValueError("roles read text only, and a part is something else")
        return "".join(texts)


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


class StreamOptions(BaseModel):
    """As OpenAI has it."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """What a client may ask; what would be ignored is refused."""

    model_config = ConfigDict(extra="forbid")
    model: str
    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: list[str] = Field(default_factory=list, max_length=MOST_STOPS)
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {
            key: value
            for key, value in given.items()
            if value is not None and not any(value == one for one in _NEUTRAL.get(key, ()))
        }

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("stop")
    @classmethod
    def _full_stops(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise ValueError("a stop sequence is empty")
        return stop

    @field_validator("messages")
    @classmethod
    def _system_first(cls, messages: list[Message]) -> list[Message]:
        if any(message.role == "system" for message in messages[1:]):
            raise ValueError("a system message stands first, or not at all")
        return messages
