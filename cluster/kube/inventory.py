"""What a stage has put into the cluster, remembered there: a ConfigMap per stage.

It is written before the objects are (old and new together), so that a stage which stops half-way can still be undone
completely, and again afterwards (new alone). Nothing but what it names is ever deleted.
"""

import json
from collections.abc import Iterable

from cluster.kube.api import Api
from cluster.render.objects import PART_OF, STAGE_LABEL, Ref


class Inventory:
    def __init__(self, api: Api, namespace: str, stage: str) -> None:
        self._api, self._stage = api, stage
        self.ref = Ref("v1", "ConfigMap", namespace, f"tierserve-inventory-{stage}")

    def read(self) -> list[Ref]:
        """The objects in the order in which they were applied; empty when the stage was never applied."""
        found = self._api.get(self.ref)
        if found is None:
            return []
        return [Ref(**entry) for entry in json.loads(found["data"]["objects.json"])]

    def write(self, refs: Iterable[Ref]) -> None:
        entries = [ref.as_dict() for ref in dict.fromkeys(refs)]
        self._api.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": self.ref.name,
                    "namespace": self.ref.namespace,
                    "labels": {**PART_OF, STAGE_LABEL: self._stage},
                },
                "data": {"objects.json": json.dumps(entries, indent=1)},
            },
            force=True,
        )

    def drop(self) -> None:
        self._api.delete(self.ref)
