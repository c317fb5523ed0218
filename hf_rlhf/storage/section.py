"""Base of all sections of a run's record."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

Json = Any
Number = int | float


class Section(BaseModel):
    """A section of the record: missing fields are null or empty, unknown fields are preserved."""

    model_config = ConfigDict(
        extra="allow", populate_by_name=True, protected_namespaces=(), use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_missing(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        keys = {field.serialization_alias or name for name, field in cls.model_fields.items()}
        return {k: v for k, v in content.items() if v is not None or k not in keys}

    def to_json(self) -> dict[str, Any]:
        """Return the section as in `run.json`; values that are not JSON are unchanged."""
        return self.model_dump(by_alias=True, warnings=False)
