"""Open the session of a run with its recorder and publication."""

from functools import partial

from accelerate import PartialState

from hf_rlhf.runs.run import Run
from hf_rlhf.training.phased import PhasedSession
from hf_rlhf.training.publication import Publication
from hf_rlhf.training.recorder import Recorder
from hf_rlhf.training.session import Session
from hf_rlhf.training.signals import Stopping


def open_session(run: Run, stopping: Stopping | None = None) -> Session:
    """Return the session of a run; a phase's session shares `stopping` with the whole run."""
    recorder = Recorder(run, PartialState())
    kind = partial(PhasedSession, open_session=open_session) if run.phase_list else Session
    return kind(run, recorder, Publication(run, recorder), stopping)
