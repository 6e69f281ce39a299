"""What the campaigns share: rows of trials, and the JSON files that they are kept in."""

import json
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass
class Row:
    """How often a fault was tried, and what did not survive it.

    Attributes:
        title: What was tried.
        tried: How often.
        failures: What went wrong, each with the output of the commands.
    """

    title: str
    tried: int = 0
    failures: list[tuple[str, list[str]]] = field(default_factory=list)

    def note(self, problem: str | None, log: list[str]) -> None:
        """Count a trial."""
        self.tried += 1
        if problem is not None:
            self.failures.append((problem, log))


def save_rows(path: Path, rows: dict[str, Row], commit: str | None) -> None:
    """Write rows with the commit at which they were tried; other rows of the file stay."""
    kept = json.loads(path.read_text()) if path.is_file() else {}
    for name, row in rows.items():
        kept[name] = {
            "title": row.title,
            "tried": row.tried,
            "survived": row.tried - len(row.failures),
            "problems": sorted({problem for problem, _ in row.failures}),
            "commit": commit,
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=2) + "\n")
