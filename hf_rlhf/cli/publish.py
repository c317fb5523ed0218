"""The verbs `hf-rlhf publish` and `hf-rlhf pull`."""

from typing import Any, Literal

import typer


def publish(
    run_dir: str = typer.Argument(help="The `output_dir` of a run."),
    repo_id: str | None = typer.Option(
        None, "--repo_id", metavar="NAMESPACE/NAME", help="Where to, if the run file does not say."
    ),
    private: bool | None = None,
    gated: Literal["auto", "manual"] | None = typer.Option(
        None, help="Readers must request access."
    ),
    base_model: str | None = typer.Option(
        None, "--base_model", metavar="ID", help="The base's id on the Hub."
    ),
    push_base: bool = typer.Option(
        False, "--push_base", help="Push the base first, if the run loaded it from a folder."
    ),
    adapter_only: bool = typer.Option(
        False, "--adapter_only", help="Push no merged weights; the adapter goes to the root."
    ),
    step: str | None = typer.Option(
        None,
        metavar="STEP|all",
        help="An intermediate checkpoint, to branch step-STEP; `all`: those not published yet.",
    ),
    revision: str | None = typer.Option(None, metavar="BRANCH"),
    endpoint: str | None = typer.Option(None, metavar="URL", help="Instead of HF_ENDPOINT's Hub."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace files that this run did not push."
    ),
) -> None:
    """Push a run folder, or finish a push.

    Pushes the merged weights, adapter, tokenizer and card. Repeating it pushes only missing files.
    The token is HF_TOKEN's or that of `hf auth login`; HF_ENDPOINT names another Hub;
    HF_RLHF_PATIENCE is the number of seconds for which a failing step is retried.
    """
    from hf_rlhf.hub.publishing import Published, publish, publish_steps

    options: dict[str, Any] = {
        **{"repo_id": repo_id, "private": private, "gated": gated},
        **{"base_model": base_model, "push_base": push_base or None},
        **{"merged": False if adapter_only else None, "revision": revision},
        **{"step": int(step) if step and step != "all" else step},
        **{"endpoint": endpoint, "overwrite": overwrite},
    }
    results: list[Published]
    if options["step"] == "all":
        del options["step"]
        results = publish_steps(run_dir, **options)
        if not results:
            print("every checkpoint is already published")
    else:
        results = [publish(run_dir, **options)]
    for published in results:
        for path, reason in published.left_out.items():
            print(f"left out: {path} ({reason})")
        for note in published.notes:
            print(f"note: {note}")
        print(f"{published.repo_id} at {published.revision}: {published.commit}")
        verb = "published" if published.new_commits else "already published, nothing pushed"
        print(f"{verb}: {len(published.files)} files, verified: {published.url}")


def pull(
    repo_id: str = typer.Argument(metavar="NAMESPACE/NAME"),
    out: str | None = typer.Option(None, metavar="DIR", help="Output folder; NAME by default."),
    revision: str | None = typer.Option(None, help="A branch, tag or commit; main by default."),
    endpoint: str | None = typer.Option(None, metavar="URL", help="Instead of HF_ENDPOINT's Hub."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace what is in DIR."),
) -> None:
    """Download a published run and verify it; prints its folder.

    Safetensors, configuration, tokenizer and card, each verified by its hash. Never pickles or
    code.
    """
    from hf_rlhf.hub.download import pull

    target = pull(
        *(repo_id, out or repo_id.rpartition("/")[2]),
        revision=revision,
        endpoint=endpoint,
        overwrite=overwrite,
    )
    print(f"pulled and verified: {target}")
