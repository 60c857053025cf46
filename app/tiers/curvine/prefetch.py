"""LMCache's prefetch policy `tierserve` (lmcache 0.5.6): loads like the default one, keeps in L1 what `Retainer`
says."""

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.storage_controllers.prefetch_policy import (
    DefaultPrefetchPolicy,
    get_registered_prefetch_policies,
    register_prefetch_policy,
)
from lmcache.v1.distributed.storage_controllers.utils import L1ManagerDescriptor, L2AdapterDescriptor

from app.tiers.curvine.retainer import Retainer

POLICY_NAME = "tierserve"


class TierservePrefetchPolicy(DefaultPrefetchPolicy):
    """Made by LMCache without arguments, one a server; called by its prefetch thread."""

    def __init__(self) -> None:
        super().__init__()
        self._retainer = Retainer()

    def plan_l1_retention(
        self, keys: list[ObjectKey], l1_manager_desc: L1ManagerDescriptor, l2_adapter_desc: L2AdapterDescriptor
    ) -> list[bool]:
        """One flag a key; never raises."""
        return self._retainer.choose(keys)


def register() -> None:
    """Makes the policy known to LMCache. Idempotent; call it before LMCache parses its arguments."""
    if POLICY_NAME not in get_registered_prefetch_policies():
        register_prefetch_policy(POLICY_NAME, TierservePrefetchPolicy)
