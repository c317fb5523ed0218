"""Store file contents once under their SHA-256, completely or not at all."""

import hashlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from hf_rlhf.storage import sync_path
from hf_rlhf_local_hub.refusals import Refused


@dataclass
class Upload:
    """A request's body while it is written to disk, under a temporary name.

    The owner closes and deletes it; `Blobs.adopt` takes the content out first.
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
        """Return the SHA-256 of the written content."""
        return self._digest.hexdigest()

    def finish(self) -> None:
        """Flush everything to disk, so that a rename publishes a complete file."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        """Delete the content, unless it was moved away."""
        self._file.close()
        self.path.unlink(missing_ok=True)


class Blobs:
    """Content-addressed files under `root`, with uploads in progress in `root/incoming`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.incoming = root / "incoming"
        self.incoming.mkdir(parents=True, exist_ok=True)
        for leftover in self.incoming.iterdir():
            leftover.unlink()

    def path(self, digest: str) -> Path:
        """Return the path for a digest, existing or not."""
        return self._root / digest[:2] / digest

    def has(self, digest: str, size: int | None = None) -> bool:
        """Return whether the content exists (and has `size`, if given)."""
        path = self.path(digest)
        return path.is_file() and (size is None or path.stat().st_size == size)

    def new_upload(self) -> Upload:
        """Return an empty file to receive content."""
        return Upload(self.incoming / uuid.uuid4().hex)

    def adopt(self, upload: Upload, digest: str) -> None:
        """Store an upload under `digest`."""
        upload.finish()
        target = self.path(digest)
        target.parent.mkdir(exist_ok=True)
        os.replace(upload.path, target)
        sync_path(target.parent)

    def put(self, content: bytes) -> str:
        """Store `content` and return its SHA-256."""
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
        """Store an upload that claims to be `digest`; raise Refused (400) if it is not."""
        if upload.sha256 != digest:
            raise Refused(
                400,
                f"The {upload.size} bytes received have SHA-256 {upload.sha256}, not {digest} as "
                "announced: the upload was cut or altered. Send it again.",
            )
        self.adopt(upload, digest)
