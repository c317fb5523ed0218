"""What one process does for all of them."""

from collections.abc import Callable

from hf_rlhf.errors import HfRlhfError


def main_does(work: Callable[[], object]) -> None:
    """Let the main process do `work` while the others wait. If it fails, all of them do."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    failure: Exception | None = None
    if PartialState().is_main_process:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the others would wait for ever
            failure = error
    if broadcast_object_list([failure is not None])[0]:
        raise failure or HfRlhfError("stopped, because the main process did; it says why.")
