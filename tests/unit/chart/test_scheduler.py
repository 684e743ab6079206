"""Extender, webhook, kube-scheduler, certificates, and admission policies."""

from __future__ import annotations

from tests.unit.chart.helm import needs_helm, pod, pod_template, render

pytestmark = needs_helm


def test_without_the_scheduler_only_the_daemon_is_installed() -> None:
    found = render({"scheduler": {"enabled": False}})
    assert {name for name in found if "verify" not in name} == {
        "ServiceAccount/hami-node",
        "ConfigMap/hami-node-config",
        "ClusterRole/hami-node",
        "ClusterRoleBinding/hami-node",
        "DaemonSet/hami-node",
        "ValidatingAdmissionPolicy/hami-node-own-node",
        "ValidatingAdmissionPolicyBinding/hami-node-own-node",
        "ValidatingAdmissionPolicy/hami-node-own-pods",
        "ValidatingAdmissionPolicyBinding/hami-node-own-pods",
    }


def test_idle_scheduler_leaves_reservations_to_hamis() -> None:
    found = render({"scheduler": {"kubeScheduler": {"replicas": 0}}})
    assert found["Deployment/hami-node-scheduler"]["spec"]["replicas"] == 0
    assert "ValidatingAdmissionPolicy/hami-node-reservations" not in found
    assert "ValidatingAdmissionPolicy/hami-node-reservations" in render()


def test_further_writers_of_reservations_are_added_to_the_policy() -> None:
    user = "system:serviceaccount:kube-system:hami-device-plugin"
    found = render({"admissionPolicies": {"reservationWriters": [user]}})
    conditions = found["ValidatingAdmissionPolicy/hami-node-reservations"]["spec"][
        "matchConditions"
    ]
    assert f"request.userInfo.username != '{user}'" in [one["expression"] for one in conditions]


def test_webhook_is_asked_about_every_pod_when_every_pod_changes() -> None:
    for values in (
        {"scheduler": {"overwriteEnv": True}},
        {"config": {"deviceConfig": {"nvidia": {"overwriteEnv": True}}}},
        {"config": {"settings": {"overwrite-env": True}}},
    ):
        found = render(values)
        assert (
            "matchConditions" not in found["MutatingWebhookConfiguration/hami-node"]["webhooks"][0]
        )


def test_webhooks_selectors_are_added_to_ours() -> None:
    extra = {"key": "gpu", "operator": "Exists"}
    values = {"whitelistNamespaces": ["ci"], "namespaceSelector": {"matchExpressions": [extra]}}
    found = render({"scheduler": {"admissionWebhook": values}})
    webhook = found["MutatingWebhookConfiguration/hami-node"]["webhooks"][0]
    assert webhook["namespaceSelector"]["matchExpressions"] == [
        {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]},
        {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", "ci"],
        },
        extra,
    ]


def test_certificate_of_the_user_needs_neither_job_nor_secrets_of_ours() -> None:
    authority = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
    own = {"existingSecret": "a", "existingClientSecret": "b", "caBundle": authority}
    found = render({"scheduler": {"certificate": own}})
    assert {name.partition("/")[0] for name in found}.isdisjoint({"Job", "Secret"})
    assert found["MutatingWebhookConfiguration/hami-node"]["webhooks"][0]["clientConfig"][
        "caBundle"
    ]
    mounted = {
        one["secret"]["secretName"]
        for name in ("extender", "scheduler")
        for one in pod(found, f"Deployment/hami-node-{name}")["volumes"]
        if "secret" in one
    }
    assert mounted == {"a", "b"}


def test_another_image_makes_another_job() -> None:
    """A Job can't be changed: an upgrade that tried to would fail."""
    jobs = [
        name
        for values in ({}, {}, {"image": {"tag": "2"}})
        for name in render(values)
        if name.startswith("Job/")
    ]
    assert jobs[0] == jobs[1] != jobs[2]


def test_change_of_kube_schedulers_configuration_replaces_its_pods() -> None:
    name = "Deployment/hami-node-scheduler"
    assert pod_template(render({"schedulerName": "mine"}), name) != pod_template(render(), name)
