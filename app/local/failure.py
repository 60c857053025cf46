"""Why a replica did not start, in a line, from the traceback in Serve's status and from the logs of the run. Pure."""

import re
from collections.abc import Iterable
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"^(?:\(EngineCore pid=\d+\) )?((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.M)
_FRAME = re.compile(r"^\s*(?:File \"|Traceback |During handling|The above exception)")
# The engine is a process of its own: what ended it stands in its output only.
_IN_THE_ENGINE = "Engine core initialization failed"
_FILLER = (
    re.compile(r"^Failed to create vLLM engine config: "),
    re.compile(r"\d+ validation errors? for \w+\s*"),
    re.compile(r"Value error, "),
    re.compile(r"\s*\[type=\w+, input_value=.*?(?:input_type=\w+\]|$)", re.S),
    re.compile(r"For further information visit \S+"),
)
_LONGEST = 320

# (what a cause says, what helps)
_REMEDIES = (
    (r"KV cache is needed|No available memory for the cache blocks", "raise `l0.gib` or lower `engine.max_model_len`"),
    (r"greater than the derived max_model_len", "lower `engine.max_model_len`"),
    (r"trust_remote_code", "set `engine.trust_remote_code: true` if you trust the model's code"),
    (r"gated|401 |403 |[Aa]ccess to model", "put a token with access to the model under `env: {HF_TOKEN: ...}`"),
    (
        r"not a valid model identifier|[Rr]epository [Nn]ot [Ff]ound|[Cc]an't load|does not appear to have|"
        r"couldn't connect|[Mm]ax retries exceeded|Invalid repository ID",
        "look at the model's `source` (a directory or a Hugging Face id) and at the network",
    ),
    (r"[Oo]ut of memory|[Cc]annot allocate|MemoryError|OOM", "lower `replicas`, `l0.gib` or `l1.gib`"),
    (r"does(n't| not) support b?float16|b?float16 is not supported|[Uu]nsupported dtype", "choose another `dtype`"),
    (r"has no L1 cache", "look at `l1` and `l2`, or turn them off (`l1: {enabled: false}, l2: {enabled: false}`)"),
    (r"validation error|[Ss]hould be|must be|[Uu]nsupported|not supported", "mend that argument under `engine:`"),
)


def cause(message: str, logs: Path | None = None) -> str:
    """The error at the bottom of `message`'s tracebacks, without what only a developer reads; that of the engine's own
    process if it only says that there was one."""
    text = _COLOUR.sub("", message)
    if _IN_THE_ENGINE in text and logs is not None:
        return (
            _last_of_engines(logs.glob("worker-*.err")) or _last_of_engines(logs.glob("worker-*.out")) or _plain(text)
        )
    return _plain(text)


def remedy(of: str) -> str | None:
    """What most likely helps against a cause; None if nobody knows."""
    return next((what for pattern, what in _REMEDIES if re.search(pattern, of)), None)


def _plain(text: str) -> str:
    raised = list(_RAISED.finditer(text))
    if not raised:
        lines = [line for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
        return _short(lines[-1] if lines else text)
    last = raised[-1]
    return _short(f"{last[2]} {text[last.end() :]}") or last[1]


def _short(text: str) -> str:
    for filler in _FILLER:
        text = filler.sub("", text)
    line = " ".join(text.split())
    if len(line) <= _LONGEST:
        return line
    sentences, end, _ = line[:_LONGEST].rpartition(". ")
    return f"{sentences}." if end else f"{line[:_LONGEST].rsplit(' ', 1)[0]} ..."


def _last_of_engines(files: Iterable[Path]) -> str | None:
    """The last error that an engine's process printed, in the newest file that has one."""
    for file in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        lines = [line for line in file.read_text(errors="replace").splitlines() if line.startswith("(EngineCore pid=")]
        if raised := [found for line in lines if (found := _RAISED.match(line))]:
            return _short(raised[-1][2])
    return None
