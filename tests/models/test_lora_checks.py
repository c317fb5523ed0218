"""A continued adapter is compared with the run's settings by the modules that both change."""

from types import SimpleNamespace

import torch

from hf_rlhf.models import lora_checks


def test_a_continued_adapter_may_list_whole_names_of_modules(monkeypatch):
    layers = {name: torch.nn.Linear(2, 2) for name in ("c_attn", "c_proj")}
    model = torch.nn.ModuleDict({"h": torch.nn.ModuleDict(layers)})
    monkeypatch.setattr(lora_checks, "skeleton", lambda _: model)

    def problems(names, saved):
        run = SimpleNamespace(spec=SimpleNamespace(settings={"lora_target_modules": names}))
        return list(lora_checks._disagreements(run, {"target_modules": saved}))

    assert not problems(["c_attn"], ["h.c_attn"])
    assert not problems(["c_proj", "c_attn"], ["c_attn", "c_proj"])
    assert len(problems(["c_attn"], ["h.c_proj"])) == 1
