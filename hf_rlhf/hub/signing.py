"""Signatures over all files of a repository, by OpenSSF's model-signing (the extra `signing`).

A signature says who published the files, and that none was changed, removed or added since. It is
the file `model.sig`, a Sigstore bundle, which `model_signing verify` reads too.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
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
        asks: whether somebody is there to sign in by a browser.
    """
    if not sign:
        return
    if isinstance(sign, str):
        _key_signer(sign)
        return
    with _installed(PublishError):
        from id import AmbientCredentialError, detect_credential
    try:
        ambient = os.environ.get(TOKEN_VARIABLE) or detect_credential("sigstore")
    except AmbientCredentialError as error:
        raise PublishError(
            f"Signing by Sigstore: this machine gives no identity: {error}"
        ) from error
    if not ambient and not (asks and sys.stdin.isatty()):
        raise PublishError(
            "Signing by Sigstore needs an identity, and nobody can sign in here: run in a CI that "
            f"has one (GitHub: `permissions: id-token: write`), set {TOKEN_VARIABLE}, or name a "
            "private key (`publish.sign: FILE`). Or train without it, and sign from a terminal: "
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
    who = _public_key(sign) if isinstance(sign, str) else "sigstore"
    content = json.dumps([who, bundle.manifest()], sort_keys=True).encode()
    kept = cache and cache / f"{hashlib.sha256(content).hexdigest()}.sig"
    if kept is not None and kept.exists():
        bundle.add_text(SIGNATURE, kept.read_text(encoding="utf-8"))
        return
    with TemporaryDirectory() as scratch, _installed(PublishError):
        from model_signing import hashing, signing

        folder = Path(scratch) / name.rpartition("/")[2]
        for path, file in bundle.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file.source, Path):
                target.symlink_to(file.source.resolve())
            else:
                target.write_bytes(file.source)
        signer = _key_signer(sign) if isinstance(sign, str) else signing.Config()
        if not isinstance(sign, str):
            token = os.environ.get(TOKEN_VARIABLE)
            signer.use_sigstore_signer(identity_token=token, use_ambient_credentials=not token)
        # The links are ours, and are files in the repository.
        signer.set_hashing_config(_hashing(hashing).set_allow_symlinks(True))
        signature = Path(scratch) / SIGNATURE
        try:
            signer.sign(folder, signature)
        except Exception as error:  # noqa: BLE001 - of a library, a browser and a server
            raise PublishError(f"Signing failed: {type(error).__name__}: {error}") from error
        bundle.add_text(SIGNATURE, signature.read_text(encoding="utf-8"))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(kept, bundle.files[SIGNATURE].read())


def verify_files(folder: Path, repo_id: str, signer: str, issuer: str | None) -> None:
    """Raise ModelError unless `folder` holds exactly the files that `signer` signed for `repo_id`.

    Args:
        folder: with everything that was pulled.
        repo_id: which its record must name: content of another repository may be signed as well.
        signer: a file with a public key; or with `issuer`, an identity of Sigstore.
        issuer: who vouches for the identity, such as https://token.actions.githubusercontent.com.
    """
    cure = "Nothing was kept. Ask its author, and do not use what it holds."
    if not (folder / SIGNATURE).is_file():
        raise ModelError(f"{repo_id} is not signed: it has no {SIGNATURE}. {cure}")
    with _installed(ModelError):
        from model_signing import hashing, verifying

    verifier = verifying.Config().set_hashing_config(_hashing(hashing))
    try:
        if issuer is None:
            verifier.use_elliptic_key_verifier(public_key=signer)
        else:
            verifier.use_sigstore_verifier(identity=signer, oidc_issuer=issuer)
    except Exception as error:  # noqa: BLE001 - unreadable, no PEM, another kind of key, no network
        raise ModelError(f"{signer} cannot be used to verify: {error}") from error
    try:
        verifier.verify(folder, folder / SIGNATURE)
    except Exception as error:  # noqa: BLE001 - a forged bundle may fail anywhere
        reason = str(error) or type(error).__name__
        raise ModelError(f"{repo_id} does not verify by {signer}: {reason}. {cure}") from error
    named = _published_as(folder)
    if named not in (None, repo_id):
        raise ModelError(
            f"{repo_id} holds the files that were signed for {named}: it is a copy, or was "
            f"renamed. {cure} If you meant {named}, pull that."
        )


def check_verifier(signer: str, issuer: str | None) -> None:
    """Raise ModelError if `signer` names no key and, without `issuer`, no identity."""
    if issuer is None and not Path(signer).is_file():
        raise ModelError(
            f"{signer!r} is not a file with a public key. For an identity of Sigstore add its "
            "issuer, such as --issuer https://token.actions.githubusercontent.com"
        )


def unsigned_files(paths: Mapping[str, Any], pulled: Mapping[str, Any]) -> list[str]:
    """Return the files of a repository that no pull looks at, and which so have no signature."""
    return sorted(
        path for path in set(paths) - set(pulled) if PurePosixPath(path).name != ".gitattributes"
    )


def _published_as(folder: Path) -> str | None:
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return str(record["publish"]["repo_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a base model that is no run


def _key_signer(path: str) -> Any:
    """Return model-signing's signer with a private key. Raises PublishError for one without use."""
    with _installed(PublishError):
        from model_signing import signing

    password = os.environ.get(PASSWORD_VARIABLE)
    try:
        return signing.Config().use_elliptic_key_signer(
            private_key=Path(path).expanduser(),
            password=password.encode() if password else None,
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PublishError(
            f"publish.sign: {path} is no private key to sign with: {error}. Expected an elliptic "
            "curve key as PEM (openssl ecparam -name prime256v1 -genkey -noout -out FILE); "
            f"the password of an encrypted one stands in {PASSWORD_VARIABLE}."
        ) from error


def _public_key(path: str) -> str:
    from cryptography.hazmat.primitives import serialization

    password = os.environ.get(PASSWORD_VARIABLE)
    key = serialization.load_pem_private_key(
        Path(path).expanduser().read_bytes(), password.encode() if password else None
    )
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    return pem.decode()


def _hashing(hashing: Any) -> Any:
    # Files of git are no exception: one in .github/ would be pulled like any other.
    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


@contextmanager
def _installed(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise kind(_INSTALL) from error
