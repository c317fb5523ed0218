"""From a chain to the `Run` of each of its phases, all of them checked before any weights load."""

from collections.abc import Sequence
from dataclasses import replace

from hf_rlhf.config import RunFile
from hf_rlhf.config.registry import provenance
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.runs.phases import SECTION, Chain, chain_of, problems_by_phase
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.runs.run import Run


def resolve_all(file: RunFile, plugin: str | None) -> tuple[Run, dict[str, Run]]:
    """Resolve and check a run file: the run that it is, and its phases by name if it has any.

    Raises ConfigError with every problem found.
    """
    chain = chain_of(file, plugin)
    if chain is None:
        return resolve_run(file, plugin=plugin), {}
    face, runs = resolve_chain(chain)
    return face, {link.name: run for link, run in zip(chain.links, runs, strict=True)}


def resolve_chain(chain: Chain) -> tuple[Run, list[Run]]:
    """Resolve and check every phase of a chain, each as if it began with the base.

    Returns:
        The chain itself as a run: the last phase, but from the base and in the chain's own folder;
        and the runs of the phases.

    Raises:
        ConfigError: with every problem of every phase.
    """
    runs: list[Run] = []
    result: list[list[Problem]] = []
    for link in chain.links:
        try:
            runs.append(resolve_run(link.file))
            result.append([])
        except ConfigError as error:
            result.append(list(error.problems))
    problems = problems_by_phase(chain.links, result)
    if not problems:
        problems = list(_unlike(chain, runs))
    if problems:
        raise ConfigError(problems)
    last = runs[-1]
    own = {"kind": "trainers", "name": chain.plugin, "label": chain.plugin, "arguments": {}}
    own |= provenance("trainers", chain.plugin)
    # What a phase has left out, the chain has too.
    spec = replace(chain.spec(), rewards=last.spec.rewards)
    face = replace(last, spec=spec, folder=chain.folder, components=(own, *last.components))
    return face, runs


def _unlike(chain: Chain, runs: Sequence[Run]) -> Sequence[Problem]:
    """Return what must be the same in all phases and is not."""
    kinds = {"use_peft": {run.model.use_peft for run in runs}, "plugin": {run.task for run in runs}}
    fix = "Phases hand on one adapter, or whole weights, of one kind of model."
    where = chain.file.where((SECTION,))
    return [
        Problem(where, f"`{key}` is not alike in all phases.", fix)
        for key, values in kinds.items()
        if len(values) > 1
    ]
