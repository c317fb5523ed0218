"""What training encodes of a row has the tools that the adapters counted."""

import json
from typing import Any

from hf_rlhf_classic.encoding import tokens

TOOL = {"name": "add", "parameters": {"properties": {"x": {"type": "number"}}}}


def test_what_training_measures_has_the_same_tools() -> None:
    class Template:
        def apply_chat_template(self, turns: Any, tools: Any, **_: Any) -> Any:
            return tools

    for tools in (json.dumps([TOOL]), [TOOL]):
        assert tokens(Template(), [{"role": "user", "content": "q"}], {"tools": tools}) == [TOOL]
    assert tokens(Template(), [{"role": "user", "content": "q"}], {"tools": None}) is None
