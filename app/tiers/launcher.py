"""LMCache's own command line with our parts registered first: `python -m app.tiers.launcher server ...`.

Adapters and policies are chosen by flags whose choices LMCache fixes when it builds its parser, so they must be
registered before its main runs; a `--server-module` or a plugin adapter is imported too late for that.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask the kernel to end this process when its starter dies, however it dies. Linux only; blocks nothing."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:  # it died before we asked
        sys.exit(1)


def main() -> None:
    end_with_parent()
    from lmcache.cli.main import main as lmcache_main

    from app.tiers.curvine import adapter, prefetch

    adapter.register()
    prefetch.register()
    lmcache_main(sys.argv[1:])


if __name__ == "__main__":
    main()
