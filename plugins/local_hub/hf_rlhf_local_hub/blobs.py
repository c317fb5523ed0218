"""File contents, each kept once under its SHA-256, and put there whole or not at all."""

import hashlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from hf_rlhf.storage import sync_path
from hf_rlhf_local_hub.refusals import Refused


@dataclass
class Upload:
    """A request's body on its way to disk, under a temporary name.

    Closed and deleted by its owner; `Blobs.adopt` takes the content out first.
    """

    path: Path
    size: int = 0

    def __post_init__(self) -> None:
        self._file = os.fdopen(
            os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        )
        self._digest = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        """Append `chunk`."""
        self._file.write(chunk)
        self._digest.update(chunk)
        self.size += len(chunk)

    @property
    def sha256(self) -> str:
        """The SHA-256 of what was written."""
        return self._digest.hexdigest()

    def finish(self) -> None:
        """Put everything on the disk itself, so that a rename publishes a whole file."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        """Forget the content, unless it has been moved away."""
        self._file.close()
        self.path.unlink(missing_ok=True)


class Blobs:
    """Content-addressed files under `root`, with `root/incoming` for what is still arriving."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.incoming = root / "incoming"
        self.incoming.mkdir(parents=True, exist_ok=True)
        for leftover in self.incoming.iterdir():
            leftover.unlink()

    def path(self, digest: str) -> Path:
        """Return where the content with that digest is, or would be."""
        return self._root / digest[:2] / digest

    def has(self, digest: str, size: int | None = None) -> bool:
        """Return whether the content is here (and, given `size`, has that size)."""
        path = self.path(digest)
        return path.is_file() and (size is None or path.stat().st_size == size)

    def new_upload(self) -> Upload:
        """Return an empty file to receive content."""
        return Upload(self.incoming / uuid.uuid4().hex)

    def adopt(self, upload: Upload, digest: str) -> None:
        """Keep what was uploaded under `digest`."""
        upload.finish()
        target = self.path(digest)
        target.parent.mkdir(exist_ok=True)
        os.replace(upload.path, target)
        sync_path(target.parent)

    def put(self, content: bytes) -> str:
        """Keep `content` and return its SHA-256."""
        digest = hashlib.sha256(content).hexdigest()
        if not self.has(digest, len(content)):
            upload = self.new_upload()
            try:
                upload.write(content)
                self.adopt(upload, digest)
            finally:
                upload.discard()
        return digest

    def receive(self, upload: Upload, digest: str) -> None:
        """Keep an upload that claims to be `digest`; raises Refused (400) when it is not."""
        if upload.sha256 != digest:
            raise Refused(
                400,
                f"The {upload.size} bytes received have SHA-256 {upload.sha256}, not {digest} as "
                "announced: the upload was cut or altered. Send it again.",
            )
        self.adopt(upload, digest)
