from types import SimpleNamespace
from typing import Any

import pytest

from app.serving.stream_preface import ASKING_HEADER, is_asked_for, take_preface, with_preface

DETAILS = {"replica": "r1", "l0_tokens": 3}
PIECE = 'data: {"a": ": tierserve "}\n\n'


@pytest.mark.parametrize("piece", [PIECE, [PIECE, PIECE]])
def test_what_is_put_before_a_piece_is_taken_off_again(piece: Any) -> None:
    assert with_preface(piece, DETAILS) != piece
    assert take_preface(with_preface(piece, DETAILS)) == (DETAILS, piece)


@pytest.mark.parametrize("piece", [PIECE, [PIECE], [], object(), [{"no": "text"}]])
def test_a_piece_without_one_is_left_as_it_is(piece: Any) -> None:
    assert take_preface(piece) == ({}, piece)


@pytest.mark.parametrize("piece", [object(), [], [{"no": "text"}]])
def test_what_is_no_text_gets_none(piece: Any) -> None:
    assert with_preface(piece, DETAILS) == piece


def test_it_is_a_comment_to_whoever_reads_it_all_the_same() -> None:
    assert with_preface(PIECE, DETAILS).startswith(":")


def test_only_who_asks_gets_one() -> None:
    assert is_asked_for(SimpleNamespace(headers={ASKING_HEADER: "1"}))
    for other in (None, SimpleNamespace(headers={"x": "1"}), SimpleNamespace(headers=None)):
        assert not is_asked_for(other)
