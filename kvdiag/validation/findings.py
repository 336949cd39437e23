"""What a check found."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A broken rule: where (file, table, row keys, column), what, and in how many rows."""

    rule: str
    message: str
    file: str
    table: str | None = None
    column: str | None = None
    rows: tuple[str, ...] = ()  # the first few keys, or line numbers
    count: int = 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def line(self) -> str:
        """One line for people."""
        where = self.file + (f" column {self.column}" if self.column else "")
        shown = ", ".join(self.rows)
        more = f" (and {self.count - len(self.rows)} more rows)" if self.count > len(self.rows) > 0 else ""
        return f"{where}: {self.message} [{self.rule}]" + (f"; rows: {shown}{more}" if shown else "")

    def github(self) -> str:
        """A workflow annotation."""

        def escaped(text: str) -> str:
            return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

        return f"::error file={escaped(self.file)},title={escaped(self.rule)}::{escaped(self.line())}"
