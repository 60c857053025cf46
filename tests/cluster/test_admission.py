"""The admission policy: both forms do the same, with the Curvine volume and the L2 address in them."""

from typing import Any

from cluster.render.bundle import Renderer
from tests.cluster.conftest import renderer


def policy(of: Renderer, kind: str) -> dict[str, Any]:
    (found,) = [o for o in of.bundle("serving").objects if o["kind"] == kind]
    return found


def newer() -> Renderer:
    return Renderer(renderer("endpoint").config.model_copy(update={"kubernetes": "1.36"}))


def test_kyverno_below_1_36_and_nothing_else_from_there() -> None:
    old, new = renderer("endpoint"), newer()
    assert [c.name for c in old.bundle("operators").charts] == ["kuberay-operator", "kyverno"]
    assert [c.name for c in new.bundle("operators").charts] == ["kuberay-operator"]
    assert not [o for o in new.bundle("serving").objects if o["kind"] == "MutatingPolicy"]
    assert not [o for o in old.bundle("serving").objects if o["kind"].startswith("MutatingAdmission")]


def test_both_policies_are_the_same_mutation() -> None:
    kyverno = policy(renderer("endpoint"), "MutatingPolicy")["spec"]
    native = policy(newer(), "MutatingAdmissionPolicy")["spec"]
    for key in ("failurePolicy", "matchConditions", "mutations"):
        assert kyverno[key] == native[key], key
    assert kyverno["matchConstraints"]["resourceRules"] == native["matchConstraints"]["resourceRules"]


def test_the_mutation_adds_volume_mount_and_address_to_pods_only() -> None:
    spec = policy(newer(), "MutatingAdmissionPolicy")["spec"]
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["CREATE"])
    expression = spec["mutations"][0]["applyConfiguration"]["expression"]
    assert 'claimName: "tierserve-l2"' in expression
    assert 'mountPath: "/mnt/curvine/l2cache"' in expression
    assert 'value: "fs://localhost:0/mnt/curvine/l2cache/pool/"' in expression
    assert expression.count("{") == expression.count("}")
    assert expression.count("(") == expression.count(")")
    assert expression.count("[") == expression.count("]")


def test_kyverno_leaves_the_operators_deployment_alone() -> None:
    assert policy(renderer("endpoint"), "MutatingPolicy")["spec"]["autogen"] == {"podControllers": {"controllers": []}}


def test_the_namespace_is_the_one_the_policies_look_for() -> None:
    (namespace,) = [
        o
        for o in renderer("endpoint").bundle("operators").objects
        if o["kind"] == "Namespace" and o["metadata"]["name"] == "tierserve"
    ]
    wanted = policy(newer(), "MutatingAdmissionPolicyBinding")["spec"]["matchResources"]["namespaceSelector"]
    assert wanted["matchLabels"].items() <= namespace["metadata"]["labels"].items()


def test_the_policy_comes_before_the_endpoint() -> None:
    kinds = [o["kind"] for o in renderer("endpoint").bundle("serving").objects]
    assert kinds.index("MutatingPolicy") < kinds.index("InferenceEndpointConfig")
