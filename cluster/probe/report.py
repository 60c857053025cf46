"""The probe's report: what it must show, and a few lines for a person."""

from typing import Any

from app.errors import ClusterError


def check_report(report: dict[str, Any]) -> dict[str, Any]:
    """Returns the report. Raises ClusterError when the proof in it is not one."""
    proof = report["proof"]
    full, l2, hit = proof["full_chunk_tokens"], proof["l2_tokens"], proof["hit_tokens"]
    # vLLM's blocks are finer than chunks: the chat template's first blocks may be in L0 from any earlier request.
    head = min(proof["l0_tokens"], report["chunk_tokens"] - 1)
    if full <= 0:
        raise ClusterError(f"the prompt of {proof['tokens']} tokens has no full chunk: nothing could be shared")
    if hit < full:
        raise ClusterError(
            f"node B found {hit} of {full} tokens in full chunks ({l2} from L2), {proof['pause_s']:g} s after node A "
            "computed them. Look at `tierserve status` and at the L2 lines of both nodes' cache servers"
        )
    if l2 + head < full:
        raise ClusterError(
            f"node B found all {full} tokens, but only {l2} came from L2: something else held the prompt (a nonce used "
            "twice, or both replicas share an L1)"
        )
    return report


def summary(report: dict[str, Any]) -> list[str]:
    proof, (a, b) = report["proof"], report["pair"]
    lines = [
        f"replica {a['id']} on node {a['node'][:12]} computed {proof['tokens']} tokens in {proof['cold_s']:g} s",
        f"replica {b['id']} on node {b['node'][:12]} took {proof['l2_tokens']} of {proof['full_chunk_tokens']} "
        f"full-chunk tokens from L2: {proof['l2_s']:g} s",
    ]
    lines += [
        f"{row['tokens']} tokens: cold {row['cold_s']:g} s, L2 {row['l2_s']:g} s ({row['cold_s'] / row['l2_s']:.2f} x)"
        for row in report.get("ttft", [])
    ]
    turns = report.get("dialogue", [])
    if turns:
        first, replay = sum(t["first_s"] for t in turns), sum(t["replay_s"] for t in turns)
        lines.append(
            f"dialogue of {len(turns)} turns: {first:.2f} s on A, {replay:.2f} s on B ({first / replay:.2f} x)"
        )
    return lines
