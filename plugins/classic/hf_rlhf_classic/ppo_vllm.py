"""Completions by vLLM, through TRL's public client."""

from typing import Any


def vllm_generation(trainer: Any) -> Any:
    """Return TRL's vLLM client for a PPO trainer, with only its temperature."""
    from trl.generation.vllm_generation import VLLMGeneration

    args = trainer.args
    return VLLMGeneration(
        model=trainer.model,
        accelerator=trainer.accelerator,
        processing_class=trainer.processing_class,
        mode=args.vllm_mode,
        server_base_url=args.vllm_server_base_url,
        server_host=args.vllm_server_host,
        server_port=args.vllm_server_port,
        group_port=args.vllm_group_port,
        server_timeout=args.vllm_server_timeout,
        tensor_parallel_size=args.vllm_tensor_parallel_size,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        max_num_seqs=args.per_device_train_batch_size * args.vllm_tensor_parallel_size,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
        temperature=args.temperature,
        max_completion_length=args.max_completion_length,
        # The end-of-sequence token is in this list, or does not end a completion.
        generation_kwargs={"stop_token_ids": sorted(trainer.stop_ids), "ignore_eos": True},
    )
