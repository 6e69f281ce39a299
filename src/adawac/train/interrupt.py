"""Ctrl-C between steps, not within one: what is saved then is whole."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupt"]


class Interrupt:
    """Notes the first Ctrl-C, for whoever looks at `asked` at a good moment; a second one raises at once."""

    def __init__(self) -> None:
        self.asked = False
        self.forced = False

    def __enter__(self) -> Self:
        self._in_charge = threading.current_thread() is threading.main_thread()  # signals reach no other
        if self._in_charge:
            self._former: Any = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_charge:
            signal.signal(signal.SIGINT, self._former)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.forced = True
            raise KeyboardInterrupt
        self.asked = True
