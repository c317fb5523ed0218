"""The verbs `hf-rlhf publish` and `hf-rlhf pull`."""

import argparse
from collections.abc import Sequence


def publish_main(argv: Sequence[str]) -> int:
    """Publish a run folder, or finish a push; prints repositories and commits."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf publish",
        description="Push the merged weights, adapter, tokenizer and card in a run folder. "
        "Repeating it pushes only missing files. The token is HF_TOKEN's or that of "
        "`hf auth login`; HF_ENDPOINT names another Hub; HF_RLHF_PATIENCE is the "
        "number of seconds for which a failing step is retried.",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the `output_dir` of a run")
    parser.add_argument(
        "--repo_id",
        metavar="NAMESPACE/NAME",
        help="your name or an organisation's, and the repository's",
    )
    parser.add_argument("--private", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--gated", choices=("auto", "manual"), help="readers must request access")
    parser.add_argument(
        "--layout",
        choices=("single", "separate"),
        help="the adapter in adapter/ (default), or in a repository NAME-adapter",
    )
    parser.add_argument("--base_model", metavar="ID", help="the base's id on the Hub")
    parser.add_argument(
        "--push_base",
        action="store_true",
        default=None,
        help="push the base there first, if the run loaded it from a folder",
    )
    parser.add_argument(
        "--adapter_only",
        dest="merged",
        action="store_false",
        default=None,
        help="push no merged weights; the adapter goes to the root",
    )
    parser.add_argument(
        "--step",
        type=_step,
        metavar="STEP|all",
        help="an intermediate checkpoint, to branch step-STEP; `all`: those not published yet",
    )
    parser.add_argument("--revision", metavar="BRANCH")
    parser.add_argument(
        "--sign",
        nargs="?",
        const=True,
        metavar="KEY",
        help="sign all files: with a private key, or without KEY by Sigstore (asks you to sign in)",
    )
    parser.add_argument("--endpoint", metavar="URL", help="a Hub other than HF_ENDPOINT's")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files that this run did not push"
    )
    arguments = vars(parser.parse_args(argv))

    from hf_rlhf.hub.publishing import Published, publish, publish_steps

    run_dir = arguments.pop("run_dir")
    results: list[Published]
    if arguments["step"] == "all":
        del arguments["step"]
        results = publish_steps(run_dir, **arguments)
        if not results:
            print("every checkpoint is already published")
    else:
        results = [publish(run_dir, **arguments)]
    for published in results:
        for path, reason in published.left_out.items():
            print(f"left out: {path} ({reason})")
        for note in published.notes:
            print(f"note: {note}")
        for repo_id, commit in published.commits.items():
            print(f"{repo_id} at {published.revision}: {commit}")
        verb = "published" if published.new_commits else "already published, nothing pushed"
        print(f"{verb}: {len(published.files)} files, verified: {published.url}")
    return 0


def _step(text: str) -> int | str:
    return text if text == "all" else int(text)


def pull_main(argv: Sequence[str]) -> int:
    """Download a published run, verified; prints its folder."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf pull",
        description="Download a model from the Hub: safetensors, configuration, tokenizer and "
        "card, each verified by its hash. Never pickles or code.",
        allow_abbrev=False,
    )
    parser.add_argument("repo_id", metavar="NAMESPACE/NAME")
    parser.add_argument("--out", metavar="DIR", help="output folder (default: NAME)")
    parser.add_argument("--revision", help="a branch, tag or commit (default: main)")
    parser.add_argument("--endpoint", metavar="URL", help="a Hub other than HF_ENDPOINT's")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in DIR")
    parser.add_argument(
        "--verify",
        metavar="KEY|IDENTITY",
        help="refuse what this public key, or with --issuer this identity, did not sign",
    )
    parser.add_argument("--issuer", metavar="URL", help="the login provider of a Sigstore identity")
    arguments = vars(parser.parse_args(argv))

    from hf_rlhf.hub.download import pull

    if arguments["issuer"] and not arguments["verify"]:
        parser.error("--issuer needs --verify IDENTITY")
    repo_id = arguments.pop("repo_id")
    out = pull(repo_id, arguments.pop("out") or repo_id.rpartition("/")[2], **arguments)
    signed = f", signed by {arguments['verify']}" if arguments["verify"] else ""
    print(f"pulled and verified{signed}: {out}")
    return 0
