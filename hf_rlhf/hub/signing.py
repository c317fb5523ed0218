"""Signatures over all files of a repository, by OpenSSF's model-signing (the extra `signing`).

A signature says who published the files, and that none was changed, removed or added since. It is
the file `model.sig`, a Sigstore bundle, which `model_signing verify` reads too.
"""

import hashlib
import json
import os
import re
import sys
from base64 import b64decode
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_rlhf.errors import ModelError, PublishError
from hf_rlhf.hub.upload_set import SIGNATURE, UploadSet
from hf_rlhf.storage.files import atomic_write_bytes

PASSWORD_VARIABLE = "HF_RLHF_SIGNING_PASSWORD"
TOKEN_VARIABLE = "SIGSTORE_ID_TOKEN"
_INSTALL = "Signatures need OpenSSF's model-signing: pip install 'hf-rlhf[signing]'."


def check_signer(sign: bool | str | None, *, asks: bool = False) -> None:
    """Raise PublishError if nothing could be signed: no such key, or no identity.

    Args:
        sign: `publish.sign`: a file with a private key, or true for Sigstore.
        asks: whether somebody may be there to sign in by a browser.
    """
    if isinstance(sign, str):
        _signer(sign)
        return
    if not sign or os.environ.get(TOKEN_VARIABLE) or (asks and sys.stdin.isatty()):
        return
    try:
        from id import AmbientCredentialError, detect_credential
    except ModuleNotFoundError as error:
        raise PublishError(_INSTALL) from error
    try:
        ambient, reason = detect_credential("sigstore"), "nobody can sign in here"
    except AmbientCredentialError as error:
        ambient, reason = None, str(error)
    if not ambient:
        raise PublishError(
            f"Signing by Sigstore needs an identity: {reason}. Run in a CI that has one (GitHub: "
            f"`permissions: id-token: write`), set {TOKEN_VARIABLE}, or name a private key "
            "(`publish.sign: FILE`). Or train without it, and sign from a terminal: "
            "hf-rlhf publish RUN_DIR --sign"
        )


def sign_files(bundle: UploadSet, sign: bool | str, name: str, cache: Path | None = None) -> None:
    """Add the signature over all of a bundle's files.

    Args:
        bundle: complete, but for the signature.
        sign: as in `check_signer`.
        name: of the repository, for readers of the signature.
        cache: a folder for signatures. One over the same files by the same signer is used again,
            so that a second push changes nothing.
    """
    check_signer(sign, asks=True)
    signer = _signer(sign)
    who = Path(sign).expanduser().read_bytes().hex() if isinstance(sign, str) else "sigstore"
    digest = hashlib.sha256(json.dumps([who, bundle.manifest()], sort_keys=True).encode())
    kept = cache / f"{digest.hexdigest()}.sig" if cache else None
    if kept is None or not kept.exists():
        with TemporaryDirectory() as scratch:
            folder, signature = Path(scratch) / name.rpartition("/")[2], Path(scratch) / SIGNATURE
            for path, file in bundle.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                if isinstance(file.source, Path):
                    (folder / path).symlink_to(file.source.resolve())
                else:
                    (folder / path).write_bytes(file.source)
            try:
                # The links are ours, and are files in the repository.
                signer.set_hashing_config(_hashing().set_allow_symlinks(True))
                signer.sign(folder, signature)
            except Exception as error:  # noqa: BLE001 - of a library, a browser or a server
                raise PublishError(f"Signing failed: {type(error).__name__}: {error}") from error
            bundle.add_text(SIGNATURE, signature.read_text(encoding="utf-8"))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(kept, bundle.files[SIGNATURE].read())
    else:
        bundle.add_text(SIGNATURE, kept.read_text(encoding="utf-8"))


def verifier_of(signer: str, issuer: str | None) -> Any:
    """Return model-signing's verifier by a public key, or with `issuer` by an identity of Sigstore.

    Raises ModelError for a signer that is neither.
    """
    if issuer is None and not Path(signer).is_file():
        raise ModelError(
            f"{signer!r} is not a file with a public key. For an identity of Sigstore add its "
            "issuer, such as --issuer https://token.actions.githubusercontent.com"
        )
    try:
        from model_signing import verifying

        verifier = verifying.Config().set_hashing_config(_hashing())
        if issuer is None:
            return verifier.use_elliptic_key_verifier(public_key=signer)
        return verifier.use_sigstore_verifier(identity=signer, oidc_issuer=issuer)
    except ModuleNotFoundError as error:
        raise ModelError(_INSTALL) from error
    except Exception as error:  # noqa: BLE001 - no PEM, another kind of key, no network
        raise ModelError(f"{signer} cannot be used to verify: {error}") from error


def verify_files(folder: Path, repo_id: str, verifier: Any) -> None:
    """Raise ModelError unless `folder` holds exactly the files that were signed for `repo_id`.

    The record or the signature must name it: the same key may sign files of another repository.
    """
    cure = "Do not use what it holds, and ask its author."
    if not (folder / SIGNATURE).is_file():
        raise ModelError(f"{repo_id} is not signed: it has no {SIGNATURE}. {cure}")
    try:
        verifier.verify(folder, folder / SIGNATURE)
    except Exception as error:  # noqa: BLE001 - a forged bundle may fail anywhere
        raise ModelError(f"{repo_id} does not verify: {_differences(error)}. {cure}") from error
    if (named := _signed_for(folder)) not in (repo_id, repo_id.rpartition("/")[2]):
        raise ModelError(
            f"{repo_id} holds the files that were signed for {named}: it is a copy, or was "
            f"renamed. {cure} If you meant {named}, pull that."
        )


def _differences(error: Exception) -> str:
    """Return how the files differ from the signed ones, or why the signature cannot be read."""
    text = str(error).replace("\\'", "'")  # the library prints a list
    changed = re.findall(r"Hash mismatch for '([^']+)'", text)
    lists = re.findall(r"(Extra|Missing) files[^:]*: ([^'\"]+)", text)
    parts = [f"another content: {', '.join(changed)}"] if changed else []
    parts += [f"{'added' if kind == 'Extra' else 'missing'}: {names}" for kind, names in lists]
    first = next(iter(text.splitlines()), "").rstrip(".: ")
    return "; ".join(parts) or first or type(error).__name__


def _signed_for(folder: Path) -> str:
    """Return the repository that the record names; of a base model that is no run, its last part.

    A base has no record, and its signature has the name without the namespace.
    """
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return str(record["publish"]["repo_id"])
    except (OSError, ValueError, KeyError, TypeError):
        bundle = json.loads((folder / SIGNATURE).read_bytes())
        return str(json.loads(b64decode(bundle["dsseEnvelope"]["payload"]))["subject"][0]["name"])


def _signer(sign: bool | str) -> Any:
    """Return model-signing's signer. Raises PublishError for a key without use."""
    password = os.environ.get(PASSWORD_VARIABLE)
    try:
        from model_signing import signing

        if isinstance(sign, str):
            return signing.Config().use_elliptic_key_signer(
                private_key=Path(sign).expanduser(),
                password=password.encode() if password else None,
            )
        token = os.environ.get(TOKEN_VARIABLE)
        return signing.Config().use_sigstore_signer(
            identity_token=token, use_ambient_credentials=not token
        )
    except ModuleNotFoundError as error:
        raise PublishError(_INSTALL) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PublishError(
            f"publish.sign: {sign} is not a private key to sign with: {error}. Expected an "
            "elliptic curve key as PEM (openssl ecparam -name prime256v1 -genkey -noout "
            f"-out FILE); set the password of an encrypted one in {PASSWORD_VARIABLE}."
        ) from error


def _hashing() -> Any:
    from model_signing import hashing

    # Files of git are no exception: one in .github/ would be pulled like any other.
    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
