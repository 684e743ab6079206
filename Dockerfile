# Works on the official Python images and on Debian's own python3 (with python3-venv).
# Built by daemonset/build-image, which gives the arguments.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
# Set by the tool, or by daemonset/build-image for those that don't.
ARG BUILDPLATFORM

# On the builder's architecture, for any: nothing of another one has to run.
FROM --platform=${BUILDPLATFORM} ${PYTHON_IMAGE} AS build
ARG TARGETARCH
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements-runtime.lock requirements-build.lock ./
COPY daemonset/image-tree daemonset/trim-kubernetes ./daemonset/
COPY hami_node ./hami_node
RUN ./daemonset/image-tree "${TARGETARCH}"

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/hami-node /opt/hami-node
# One arena: Python's threads seldom allocate at the same time, and each arena keeps its own gaps.
ENV PATH=/opt/hami-node/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_ARENA_MAX=1
# The daemon's manifests ask for root, which kubelet's folders need; nothing else does.
USER 65532:65532
ENTRYPOINT ["hami-node"]
CMD ["run"]
ARG BASE_NAME=""
ARG BASE_DIGEST=""
ARG VERSION=""
ARG REVISION=""
ARG CREATED=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="hami-node" \
      org.opencontainers.image.description="Share GPUs and AWS Neuron devices between containers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="hami-node" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.url="${SOURCE}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${SOURCE}" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
