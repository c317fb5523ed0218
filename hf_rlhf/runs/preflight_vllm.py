"""Checks of vLLM that TRL would make only after the weights are loaded.

TRL 1.16's client (`trl.generation.vllm_client`) talks to vLLM's own server, which must run with
its development endpoints and a weight transfer, or no new weights can reach it.
"""

import importlib.util
import json
import time
from collections.abc import Iterator
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

from hf_rlhf.distributed import is_planned, processes, rank
from hf_rlhf.errors import Problem

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

SERVE = (
    'VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config \'{"backend": "nccl"}\' '
    "--logprobs-mode processed_logprobs --max-logprobs -1"
)
_ATTEMPT_SECONDS = 5.0


def vllm_problems(run: "Run") -> Iterator[Problem]:
    """Yield problems of `use_vllm`; none if it is off."""
    training = run.training
    if not getattr(training, "use_vllm", False):
        return
    if importlib.util.find_spec("vllm") is None:
        yield Problem(
            "use_vllm",
            "the package vllm is not installed; TRL needs it here even to talk to a server.",
            "`pip install hf-rlhf[vllm]`, or `--use_vllm false`.",
        )
    size = training.vllm_tensor_parallel_size
    if training.vllm_mode not in ("server", "colocate"):
        yield Problem("vllm_mode", f"{training.vllm_mode!r} is neither server nor colocate.")
    elif training.vllm_mode == "colocate" and processes() % size:
        yield Problem("vllm_tensor_parallel_size", f"{size} does not divide {processes()} GPUs.")
    elif training.vllm_mode == "server" and rank() == 0:
        base = training.vllm_server_base_url
        url = base or f"http://{training.vllm_server_host}:{training.vllm_server_port}"
        # TRL waits for a server that is still starting; a dry run does not.
        yield from _server(url.rstrip("/"), 0.0 if is_planned() else training.vllm_server_timeout)


def _server(url: str, timeout: float) -> Iterator[Problem]:
    where = "vllm_server_base_url"
    if failure := _failure(f"{url}/health", timeout):
        yield Problem(where, f"no vLLM server answers at {url}: {failure}.", f"Start one: {SERVE}")
        return
    try:
        with urlopen(f"{url}/server_info?config_format=json", timeout=_ATTEMPT_SECONDS) as answer:
            config: Any = json.load(answer)["vllm_config"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        config = {}
    if not isinstance(config, dict) or not config.get("weight_transfer_config"):
        yield Problem(
            where,
            f"the server at {url} accepts no new weights, so it would generate with the old ones.",
            f"Start it with: {SERVE}",
        )


def _failure(url: str, timeout: float) -> str | None:
    """Return why `url` still does not answer after `timeout` seconds, or None if it does."""
    end = time.monotonic() + timeout
    while True:
        try:
            with urlopen(url, timeout=_ATTEMPT_SECONDS) as answer:
                text = None if answer.status == 200 else f"status {answer.status}"
        except HTTPError as error:
            text = f"status {error.code}"
        except (OSError, HTTPException, ValueError) as error:
            text = str(getattr(error, "reason", error)) or type(error).__name__
        if text is None or time.monotonic() >= end:
            return text
        time.sleep(2.0)
