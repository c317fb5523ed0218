"""Which ids were read, in little memory: a table of 64-bit hashes."""

from array import array

_FIRST = 1 << 12


class Seen:
    """Values by hash, both of 64 bits: 32 to 64 bytes for each, where a dictionary takes 200.

    Open addressing with linear probing, at most half full. A hash of 0 stands for 1.
    """

    def __init__(self) -> None:
        self._count = 0
        self._hashes = array("Q", bytes(8 * _FIRST))
        self._values = array("Q", bytes(8 * _FIRST))

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def get(self, key: int) -> int | None:
        """Return the value of a hash, or None."""
        place = self._place(key or 1)
        return self._values[place] if self._hashes[place] else None

    def put(self, key: int, value: int) -> None:
        """Set the value of a hash."""
        place = self._place(key or 1)
        if not self._hashes[place]:
            self._count += 1
            self._hashes[place] = key or 1
        self._values[place] = value
        if 2 * self._count > len(self._hashes):
            self._grow()

    def _place(self, key: int) -> int:
        """Return where a hash stands, or would."""
        last = len(self._hashes) - 1
        place = key & last
        while (there := self._hashes[place]) and there != key:
            place = place + 1 & last
        return place

    def _grow(self) -> None:
        old = zip(self._hashes, self._values, strict=True)
        size = 2 * len(self._hashes)
        self._count, self._hashes, self._values = 0, *(array("Q", bytes(8 * size)) for _ in "ab")
        for key, value in old:
            if key:
                self.put(key, value)
