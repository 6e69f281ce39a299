"""Ctrl-C, or SIGTERM as clusters and containers send it, between steps and not within one: what is saved is whole."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupt"]


class Interrupt:
    """Notes the first signal, for whoever looks at `asked` at a good moment; the same one again raises at once."""

    def __init__(self) -> None:
        self.forced = False
        self._seen: set[int] = set()
        self._former: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether somebody wants the training to stop."""
        return bool(self._seen)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            self._former[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else it is somebody's already
                self._former[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._seen:
            self.forced = True
            raise KeyboardInterrupt
        self._seen.add(number)
