# One image for every node: what differs between nodes is in the environment
# (docs/CONFIGURATION.md), and what must last is in /data. It listens beyond its own
# container, so it starts only with certificates and the keys of tokens (docs/TLS.md,
# docs/ACCESS.md), or with SHOAL_INSECURE=1.

# `docker build --build-arg PYTHON=python:3.13-slim@sha256:…` pins the base image to one content, for both stages.
ARG PYTHON=python:3.13-slim
FROM ${PYTHON} AS build
WORKDIR /source
# Without pip: the base image's own installs into it, so none is shipped.
RUN python -m venv --without-pip /opt/shoal
# Every file has a hash, which was recorded when its version was chosen (`make lock`).
COPY deploy/requirements.txt deploy/build-requirements.txt ./deploy/
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement deploy/build-requirements.txt \
    && pip --python /opt/shoal/bin/python install --no-cache-dir --disable-pip-version-check \
        --require-hashes --requirement deploy/requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY shoal ./shoal
# `shoal/page/client` leads there.
COPY clients/js/src ./clients/js/src
RUN pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/shoal/bin/python install --no-cache-dir --disable-pip-version-check --no-deps --no-index /wheels/*.whl
# The bill of materials (CycloneDX): what the image's environment contains, version by version.
RUN cyclonedx-py environment --output-reproducible --output-file /opt/shoal/bom.json /opt/shoal/bin/python

FROM ${PYTHON}
# A fixed number, so that volumes and security policies can name it. An empty
# volume takes over the owner of the directory on which it is mounted: at /nodes
# docker-compose.yml's service `certificates` has those of up to nine nodes and of clients.
RUN groupadd --gid 10001 shoal \
    && useradd --uid 10001 --gid shoal --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin shoal \
    && install --directory --owner=shoal --group=shoal --mode=0700 /data \
    && install --directory --owner=shoal --group=shoal --mode=0700 /tls \
    && install --directory --owner=shoal --group=shoal --mode=0700 $(seq --format /nodes/n%g 9) /nodes/client
COPY --from=build /opt/shoal /opt/shoal
COPY deploy/probe.py /opt/shoal/probe.py
# SHOAL_URL is for the commands that look into the node: `docker compose exec n1 shoal status`.
ENV PATH=/opt/shoal/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    SHOAL_LISTEN_HOST=0.0.0.0 \
    SHOAL_URL=http://127.0.0.1:7400
USER 10001:10001
VOLUME /data
EXPOSE 7400
STOPSIGNAL SIGTERM
# Alive, not ready: a node whose disk is full still answers reads, and must not be restarted for it.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --start-interval=2s --retries=3 \
    CMD ["python", "-I", "-S", "/opt/shoal/probe.py"]
ENTRYPOINT ["shoal"]
CMD ["serve", "--data", "/data"]
