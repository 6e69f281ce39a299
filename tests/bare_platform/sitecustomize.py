"""Makes the Python that has this folder on its path, and every process that it starts, a platform like Windows.

Nothing forks, the modules and names of POSIX are hidden from adawac, and a file stays where it is while it is open.
"""

import builtins
import errno
import multiprocessing
import os
import signal
import types
from pathlib import Path

MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
NAMES = {
    os: """fork forkpty register_at_fork setsid getpgid killpg sched_getaffinity sysconf getuid uname O_DIRECTORY
        O_NOFOLLOW mkfifo""",
    signal: "SIGKILL SIGHUP SIGQUIT SIGALRM SIGUSR1 pthread_sigmask sigwaitinfo pause alarm",
}
SELF = Path("/proc/self")


def without(module: types.ModuleType, names: list[str]) -> types.ModuleType:
    bare = types.ModuleType(module.__name__)
    bare.__dict__.update({name: value for name, value in vars(module).items() if name not in names})
    return bare


BARE = {module.__name__: without(module, names.split()) for module, names in NAMES.items()}


def import_module(name, globals=None, locals=None, fromlist=(), level=0, real=builtins.__import__):
    importer = (globals or {}).get("__name__", "").split(".")[0]
    if importer in ("adawac", "filelock") and name in MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if importer == "adawac" and name in BARE:
        return BARE[name]
    return real(name, globals, locals, fromlist, level)


def fork():
    raise NotImplementedError("Nothing forks here.")


def check_closed(path) -> None:
    """Refuse what is open or mapped into memory, and a folder that has such a file."""
    path = os.path.realpath(path)
    links = [link for link in (SELF / "fd").iterdir() if os.path.lexists(link)]  # the listing itself is closed again
    maps = [line for line in (SELF / "maps").read_text().splitlines() if " /" in line]
    in_use = [str(link.readlink()) for link in links] + [line.split(maxsplit=5)[5] for line in maps]
    if any(used == path or used.startswith(f"{path}{os.sep}") for used in in_use):
        raise PermissionError(errno.EACCES, "The process cannot access the file because it is being used", path)


def checked(function, paths):
    def call(*arguments, **options):
        if options.get("dir_fd") is None:  # shutil.rmtree gives one where it has the folder open
            for path in arguments[:paths]:
                check_closed(path)
        return function(*arguments, **options)

    return call


def open_file(path, flags, *arguments, real=os.open, **options):
    if Path(path).is_dir():
        raise PermissionError(errno.EACCES, "Permission denied", path)
    return real(path, flags, *arguments, **options)


def fsync(descriptor, real=os.fsync):
    flags = (SELF / "fdinfo" / str(descriptor)).read_text().split("flags:")[1].split()[0]
    if int(flags, 8) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    return real(descriptor)


builtins.__import__ = import_module
multiprocessing.set_start_method("spawn")
os.fork = os.forkpty = fork
for name, paths in {"replace": 2, "rename": 2, "unlink": 1, "remove": 1, "rmdir": 1}.items():
    setattr(os, name, checked(getattr(os, name), paths))
    setattr(BARE["os"], name, getattr(os, name))
BARE["os"].__dict__.update(open=open_file, fsync=fsync)
