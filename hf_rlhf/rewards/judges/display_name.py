"""What a model behind an API is to its user, so that messages speak of what the user knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DisplayName:
    """A name, as text: "judge". Where the user does not write a setting by its name, how instead.

    `Called("summariser", {"base_url": "--base_url"})` for options of a command line.
    """

    name: str
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Setting -> what the user writes; a setting that is not here is written by its name."""

    def __str__(self) -> str:
        return self.name

    def setting(self, name: str) -> str:
        """Return a setting as the user writes it."""
        return self.spelled.get(name, name)


JUDGE = DisplayName("judge")
