"""AdmissionReviews as the API server sends them to a webhook."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def review_of(obj: object, **request: object) -> Json:
    """The review of a new object; `request` replaces fields of the request."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "default",
            "dryRun": False,
            "object": obj,
            **request,
        },
    }
