# Works on the official Python images and on Debian's own python3 (with python3-venv).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python3 -m venv /opt/hami-node
COPY requirements-runtime.lock ./
RUN /opt/hami-node/bin/pip install --no-cache-dir --no-compile --disable-pip-version-check \
      -r requirements-runtime.lock
COPY pyproject.toml README.md LICENSE daemonset/trim-kubernetes ./
COPY hami_node ./hami_node
RUN /opt/hami-node/bin/pip install --no-cache-dir --no-compile --disable-pip-version-check \
      --no-deps . && \
    ./trim-kubernetes /opt/hami-node/bin/python3 /opt/hami-node/lib/python3*/site-packages
# Byte code that is never checked against its source: the file system is read-only.
RUN /opt/hami-node/bin/pip uninstall --yes --quiet pip setuptools 2>/dev/null; \
    find /opt/hami-node -depth -name __pycache__ -type d -exec rm -rf {} + ; \
    /opt/hami-node/bin/python3 -m compileall -q --invalidation-mode unchecked-hash \
      /opt/hami-node/lib && \
    /opt/hami-node/bin/hami-node --version

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="hami-node" \
      org.opencontainers.image.description="Share GPUs and AWS Neuron devices between containers" \
      org.opencontainers.image.licenses="Apache-2.0"
# The base image's own installers have no business in a daemon.
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/lib/python3*/ensurepip \
      /usr/lib/python3*/ensurepip /usr/lib/python3/dist-packages/pip* \
      /usr/lib/python3/dist-packages/setuptools* /usr/lib/python3/dist-packages/wheel* \
      /usr/lib/python3/dist-packages/pkg_resources /usr/share/python-wheels \
      /usr/local/bin/pip* /usr/bin/pip* /usr/local/bin/wheel
COPY --from=build /opt/hami-node /opt/hami-node
# Two arenas: threads that allocate at the same time would otherwise keep 64 MiB areas each.
ENV PATH=/opt/hami-node/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_ARENA_MAX=2
ENTRYPOINT ["hami-node"]
CMD ["run"]
