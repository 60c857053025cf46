"""Skips Ray Serve LLM's download step for models that already lie on disk.

The step is a Ray task per replica in a process of its own, which imports all of Ray Serve LLM to find that there is
nothing to fetch: two replicas on two cores were ready after 58 s with it, after 48 s without (docs/serving.md).
"""

from ray.llm._internal.common.callbacks.base import CallbackBase

PATH = f"{__name__}:LocalWeights"


class LocalWeights(CallbackBase):
    """A callback of LLMConfig.callback_config; called once in the replica before its engine starts."""

    async def on_before_node_init(self) -> None:
        self.ctx.run_init_node = False
