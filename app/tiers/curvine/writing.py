"""One store's chunks, written by several workers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from app.tiers.curvine import chunkfile
from app.tiers.curvine.directory import GONE, PoolDirectory
from app.tiers.curvine.fused_layout import Answer
from app.tiers.curvine.fused_table import Taken
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Put
from app.tiers.curvine.portion import PlainTable, Portion
from app.tiers.curvine.writer import Writer

Given: TypeAlias = tuple[int, ChunkId, str, memoryview]
"""The caller's number for it, the chunk, its file, its payload."""


@dataclass(slots=True)  # not frozen, as Reading
class Writing:
    """A file that is to be written from `payload`, admitted with its size."""

    number: int
    chunk: ChunkId
    path: str
    payload: memoryview
    file_bytes: int
    temporary: str = ""
    verdict: Put = Put.ABANDONED


class Store(Portion[Given, Writing]):
    """Whatever becomes of a row, what it was admitted with is given back unless it is stored."""

    def __init__(self, directory: PoolDirectory, writer: Writer, *, helped: bool = False) -> None:
        fused = writer.fs.fused()
        table = PlainTable() if fused is None else fused.to_write(reserve=writer.reserves())
        super().__init__(table, helped=helped)
        self._directory = directory
        self._writer = writer
        self._refused: list[Writing] = []

    def lead(self, wanted: Iterable[Given], landing: Landing) -> Iterator[Writing]:
        yield from super().lead(wanted, landing)
        for row in self._refused:
            row.verdict = Put.ABANDONED if landing.revoked else self._writer.exists(row.path)
            yield row

    def _add(self, wanted: Given) -> None:
        number, chunk, path, payload = wanted
        identity = chunkfile.identity_of(chunk)
        row = Writing(number, chunk, path, payload, chunkfile.file_bytes(chunk, len(payload), identity))
        if not self._writer.admit(row.file_bytes):
            self._refused.append(row)
            return
        row.temporary = self._directory.new_temporary()
        self._rows.append(row)
        self._table.add(chunk, payload, path, row.temporary, identity)

    def _done(self, row: Writing, answer: Answer) -> Writing:
        return self._settled(row, Put.STORED if answer is Answer.DONE else Put.EXISTS)

    def _abandoned(self, row: Writing) -> Writing:
        return self._settled(row, Put.ABANDONED)

    def _looked_at(self, row: Writing, taken: Taken, landing: Landing) -> Iterator[Writing]:
        verdict = Put.FAILED
        try:
            verdict = self._by_hand(row, taken, landing)
        finally:
            self._settled(row, verdict)
        landing.step()
        yield row

    def _by_hand(self, row: Writing, taken: Taken, landing: Landing) -> Put:
        writer, error = self._writer, taken.file
        if taken.answer is Answer.SHUT:
            return Put.ABANDONED
        if taken.answer is Answer.UNPUBLISHED:
            return writer.publish(row.temporary, row.path, row.chunk.family)
        if isinstance(error, OSError) and error.errno not in GONE:
            return writer.failed(error)
        frame = chunkfile.frame(row.chunk, len(row.payload))
        return writer.put(frame, row.payload, row.path, row.temporary, landing)

    def _settled(self, row: Writing, verdict: Put) -> Writing:
        row.verdict = verdict
        self._directory.forget_temporary(row.temporary)
        if verdict is not Put.STORED:
            self._writer.refund(row.file_bytes)
        return row
