"""The model provider `saved` of inspect_ai: a model by any name that `hf-rlhf chat` takes.

Prompts are rendered and replies parsed as in training, so that an evaluation by inspect_ai and one
of the run write and read the same tokens.
"""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import anyio
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopReason,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo
from inspect_ai.util import store

from hf_rlhf.errors import ModelError
from hf_rlhf_agents.harness.messages import as_dict
from hf_rlhf_agents.harness.tools import EPOCH

MAX_TOKENS = 512


@modelapi(name="saved")
class saved(ModelAPI):  # noqa: N801 - the name of the provider
    """A run folder, weights, an adapter or a Hub id: `saved/PATH`; loaded once."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - the signature of ModelAPI
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        from hf_rlhf.cli import ChatModel
        from hf_rlhf.environments import prepare_tokenizer, tool_template

        self._stack = ExitStack()
        self._chat = ChatModel.open(self._stack, model_name)
        self._calls_tools = not list(prepare_tokenizer(self._chat.tokenizer))
        self._template = tool_template(self._chat.tokenizer) if self._calls_tools else None

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return a reply; one at a time. Runs of the same task differ in the seed."""
        if config.seed is not None:
            config = config.model_copy(update={"seed": config.seed + store().get(EPOCH, 1) - 1})
        return await anyio.to_thread.run_sync(self._reply, input, tools, config)

    def _reply(
        self, messages: list[ChatMessage], tools: list[ToolInfo], config: GenerateConfig
    ) -> ModelOutput:
        from trl.chat_template_utils import parse_response

        if tools and not self._calls_tools:
            raise ModelError(f"{self.model_name} cannot call tools: its chat template has none.")
        chat, schemas = self._chat, [schema_of(tool) for tool in tools]
        prompt = [as_dict(message) for message in messages]
        template = {"tools": schemas or None, "chat_template": self._template}
        template = {key: value for key, value in template.items() if value is not None}
        sampling = SimpleNamespace(temperature=config.temperature or 0.0, top_p=config.top_p or 1.0)
        most = config.max_tokens or MAX_TOKENS
        try:
            count, completion = chat.reply(
                chat.own, prompt, sampling, most, seed=config.seed, template=template
            )
        except ModelError as error:
            if "positions" not in str(error):
                raise
            return ModelOutput.from_content(self.model_name, "", stop_reason="model_length")
        ids = list(completion.ids)
        parsed: dict[str, Any] = {"content": completion.text}
        if self._calls_tools and ids:
            parsed = parse_response(chat.tokenizer, ids, prefix=[], tools=schemas or None)
        message = ChatMessageAssistant(
            content=parsed.get("content") or "",
            model=self.model_name,
            source="generate",
            tool_calls=[_call(each, at) for at, each in enumerate(parsed.get("tool_calls") or ())]
            or None,
        )
        reason: StopReason = "tool_calls" if message.tool_calls else "stop"
        if completion.truncated:
            reason = "max_tokens"
        choice = ChatCompletionChoice(message=message, stop_reason=reason)
        used = ModelUsage(input_tokens=count, output_tokens=len(ids), total_tokens=count + len(ids))
        return ModelOutput(model=self.model_name, choices=[choice], usage=used)

    def max_connections(self) -> int:
        """Return 1: the model computes a single reply at a time."""
        return 1


def schema_of(tool: ToolInfo) -> dict[str, Any]:
    """Return the JSON schema of a tool, that of training where there is one."""
    if tool.options and "schema" in tool.options:
        schema: dict[str, Any] = tool.options["schema"]
        return schema
    function = tool.model_dump(exclude_none=True, exclude={"options"})
    return {"type": "function", "function": function}


def _call(call: dict[str, Any], at: int) -> ToolCall:
    function = call.get("function") or call
    arguments = function.get("arguments")
    problem = None if isinstance(arguments, dict) else f"arguments are no object: {arguments!r}"
    return ToolCall(
        id=f"call_{at}_{uuid4().hex[:8]}",
        function=str(function.get("name", "")),
        arguments=arguments if isinstance(arguments, dict) else {},
        parse_error=problem,
    )
