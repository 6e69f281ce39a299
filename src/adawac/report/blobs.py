"""Large parts of a report, kept apart from its JSON so that opening the file does not wait for them."""

import base64
import gzip
from dataclasses import dataclass, field

__all__ = ["Blobs"]


@dataclass
class Blobs:
    """Base64 texts by number; equal contents are kept once."""

    texts: list[str] = field(default_factory=list)
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, content: bytes) -> int:
        """Keep bytes and return their number."""
        if content not in self._places:
            self._places[content] = len(self.texts)
            self.texts.append(base64.b64encode(content).decode("ascii"))
        return self._places[content]

    def add_compressed(self, content: bytes) -> int:
        """Keep bytes as gzip, without a time stamp: the same bytes give the same file."""
        return self.add(gzip.compress(content, compresslevel=6, mtime=0))
