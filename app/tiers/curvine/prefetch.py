"""LMCache's prefetch policy `tierserve` (lmcache 0.5.6): loads from L2 what is sooner loaded than computed
(`LoadingRule`), otherwise like the default one; keeps in L1 what `Retainer` says."""

from lmcache.v1.distributed.api import FetchingPolicy, GroupedObjectKeys, ObjectKey
from lmcache.v1.distributed.storage_controllers.prefetch_policy import (
    DefaultPrefetchPolicy,
    PrefetchPlan,
    get_registered_prefetch_policies,
    register_prefetch_policy,
)
from lmcache.v1.distributed.storage_controllers.utils import L1ManagerDescriptor, L2AdapterDescriptor, MapState

from app.tiers.curvine.retainer import Retainer
from app.tiers.loading import RULE, LoadingRule

POLICY_NAME = "tierserve"


class TierservePrefetchPolicy(DefaultPrefetchPolicy):
    """Made by LMCache without arguments, one a server; called by its prefetch thread."""

    def __init__(self, rule: LoadingRule = RULE) -> None:
        super().__init__()
        self._retainer = Retainer()
        self._rule = rule

    def plan_load(
        self,
        key_groups: list[GroupedObjectKeys],
        l1_locked_keys: MapState,
        l2_locked_keys: MapState,
        l1_manager_descs: dict[int, L1ManagerDescriptor],
        l2_adapter_descs: dict[int, L2AdapterDescriptor],
        fetching_policy: FetchingPolicy,
    ) -> PrefetchPlan:
        """Never raises, as the base class does not. What is declined is released by the controller."""
        l1, l2 = (l1_locked_keys, l1_manager_descs), (l2_locked_keys, l2_adapter_descs)
        plan = super().plan_load(key_groups, l1[0], l2[0], l1[1], l2[1], fetching_policy)
        objects = sum(cells.popcount() for _, cells in plan.l2_planned_keys.items())
        if not objects or fetching_policy != "prefix":
            return plan
        parts = len(key_groups)
        if self._rule.worth_loading(-(-objects // parts), parts):
            return plan
        # Planned again and not cut: L1's part before the first gap is all that can be used without L2.
        return super().plan_load(key_groups, l1[0], MapState(), l1[1], {}, fetching_policy)

    def plan_l1_retention(
        self, keys: list[ObjectKey], l1_manager_desc: L1ManagerDescriptor, l2_adapter_desc: L2AdapterDescriptor
    ) -> list[bool]:
        """One flag a key; never raises."""
        return self._retainer.choose(keys)


def register() -> None:
    """Makes the policy known to LMCache. Idempotent; call it before LMCache parses its arguments."""
    if POLICY_NAME not in get_registered_prefetch_policies():
        register_prefetch_policy(POLICY_NAME, TierservePrefetchPolicy)
