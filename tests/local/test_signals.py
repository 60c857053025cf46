import signal
import subprocess
import sys

PROGRAM = """
import signal, sys
from contextlib import ExitStack
from app.local.signals import interrupt_on_sigterm

interrupt_on_sigterm()
with ExitStack() as stack:
    stack.callback(print, "cleaned up", flush=True)
    print("ready", flush=True)
    signal.pause()
"""


def test_being_told_to_end_leaves_every_block(root: object) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=str(root), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert said == "cleaned up\n"
    assert process.returncode != 0
