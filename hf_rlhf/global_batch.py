"""The batch of one optimizer step, said in prompts: the same on any number of processes."""

from dataclasses import dataclass, field

from hf_rlhf.distributed import processes


@dataclass
class PromptsPerStep:
    """A base for the `Config` of trainers that sample, beside TRL's configuration or another's.

    `class MyConfig(PromptsPerStep, GRPOConfig)`, a dataclass, has the setting `prompts_per_step`.
    With it, gradient accumulation follows from the number of processes, so the batch is the same
    on one GPU and on eight: `prompts_per_step * num_generations` completions make one generation
    and one optimizer step. What does not divide is a ValueError.
    """

    prompts_per_step: int | None = field(
        default=None,
        metadata={
            "help": "Prompts of one optimizer step, over all processes. Accumulation is derived."
        },
    )

    def __post_init__(self) -> None:
        if self.prompts_per_step is not None:
            derived = self._accumulation(self.prompts_per_step)
            if self.gradient_accumulation_steps not in (1, derived):
                raise ValueError(
                    f"gradient_accumulation_steps {self.gradient_accumulation_steps} is not the "
                    f"{derived} that prompts_per_step {self.prompts_per_step} makes. Give one."
                )
            self.gradient_accumulation_steps: int = derived
        super().__post_init__()  # type: ignore[misc]

    def _accumulation(self, prompts: int) -> int:
        if prompts < 1:
            raise ValueError(f"prompts_per_step is {prompts}, and must be 1 or more.")
        generations: int = getattr(self, "num_generations", None) or 1
        batch: int = self.per_device_train_batch_size  # type: ignore[attr-defined]
        completions = prompts * generations
        if completions % (batch * processes()):
            raise ValueError(
                f"prompts_per_step {prompts} x num_generations {generations} = {completions} "
                f"completions do not divide into {processes()} processes x "
                f"per_device_train_batch_size {batch}. Change one."
            )
        return completions // (batch * processes())
