"""`check_trainer` trains for real: ours pass it, and each way to break the contract is caught."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from hf_rlhf import train
from hf_rlhf.testing import check_trainer

pytestmark = pytest.mark.slow


def test_ours_conform():
    from hf_rlhf.testing.plain import PlainGRPO
    from hf_rlhf_refiner.trainer import RefinerTrainer

    check_trainer(PlainGRPO)
    settings = {"steps_per_generation": 2, "num_iterations": 2, "save_steps": 4, "max_steps": 8}
    check_trainer(RefinerTrainer, settings={**settings, "use_peft": True, "lora_r": 4})


def test_broken_ones_are_caught(tmp_path):
    import torch
    from transformers import TrainerCallback

    from hf_rlhf.testing.plain import PlainGRPO

    class Private(PlainGRPO):
        def _prepare_inputs(self, inputs):
            return super()._prepare_inputs(inputs)

    class Deaf(PlainGRPO):
        @classmethod
        def from_run(cls, run):
            return super().from_run(run.__class__(**{**vars(run), "callbacks": ()}))

    class Idle(PlainGRPO):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs) * 0

    class Pickles(PlainGRPO):
        def save_model(self, output_dir=None, _internal_call=False):
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            torch.save(self.model.state_dict(), f"{output_dir}/pytorch_model.bin")

    class Forgets(PlainGRPO):
        """Keeps a state of its own that no checkpoint has."""

        @classmethod
        def from_run(cls, run):
            class Decays(TrainerCallback):
                steps = 0

                def on_step_begin(self, args, state, control, model=None, **_):
                    self.steps += 1
                    with torch.no_grad():
                        for weight in model.parameters():
                            weight *= 1 - 1e-3 / self.steps

            return super().from_run(run.with_callbacks(Decays()))

    @dataclass
    class NoTrainer:
        name: str = "x"

    for trainer, said in [
        (Private, "overrides_nothing_private: it overrides _prepare_inputs"),
        (Deaf, "calls_the_callbacks: run.callbacks were called so often: .*'step_end': 0"),
        (Idle, "trains: no trainable weight changed"),
        (Pickles, r"saves: save_model wrote \['pytorch_model.bin'\]"),
        (Forgets, "resumes_exactly: resumed from checkpoint-1, weights differ by up to"),
        (
            NoTrainer,
            "has_the_contract: .*NoTrainer.* is not derived from hf_rlhf",
        ),
    ]:
        with pytest.raises(AssertionError, match=said):
            check_trainer(trainer)
    check_trainer(Private, allow=["_prepare_inputs"])


def test_the_minimal_run_needs_no_package_but_the_core(minimal_run, offer):
    seen = []

    def monitor():
        from hf_rlhf.testing.minimal import LetterShare

        class Seen(LetterShare):
            def __call__(self, prompts, completions, answer, **_):
                seen.extend(answer)
                return super().__call__(prompts, completions)

        return Seen()

    offer("rewards", monitor=monitor)
    record = train(config={**minimal_run, "rewards": [{"name": "monitor"}]})
    assert record.status == "finished"
    assert record.training.steps == 2
    assert seen
