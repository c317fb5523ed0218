"""The monitor's results in the run's record."""

from hf_rlhf.storage.section import Json, Section


class MonitorSection(Section):
    """The run file's `monitor:` section and its results."""

    settings: dict[str, Json] = {}
    """Settings with defaults."""
    measurements: list[dict[str, Json]] = []
    """`hf_rlhf.monitoring.Measurement`, each with `length_z` and the names of its `signals`."""
    warnings: list[dict[str, Json]] = []
    """Each `signal` with the `step` at which it fired, `since` when, its `text`, and whether the
    run was `stopped`."""
    not_measured: list[str] = []
    """Signals that cannot fire, and why."""
    clean_step: int | None = None
    """The last step before the drift, if there is one."""
    stopped_at: int | None = None
    """The step at which the monitor stopped the run; null once it continues."""
