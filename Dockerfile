# The base is named by its tag. A release builds with the digest of that day:
#   docker build --build-arg BASE=python:3.11-slim-bookworm@sha256:… .
# It has to be a glibc base: the NVIDIA runtime puts glibc-linked driver libraries into the container.
# tests/deploy/test_image_steps.py runs these very steps without a container engine.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# First what seldom changes. Every file that is installed has its hash in a lock (scripts/lock.sh), the builder's too.
# Wheels alone: a source archive would run its own build here, with whatever that fetches and no lock names.
COPY deploy/image/requirements.lock deploy/image/build.lock ./
RUN python -m venv /opt/gpumon \
    && /opt/gpumon/bin/python -m pip install --no-cache-dir --only-binary :all: --require-hashes -r requirements.lock \
    && python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --no-cache-dir --only-binary :all: --require-hashes -r build.lock
COPY pyproject.toml README.md LICENSE ./
COPY gpumon gpumon
COPY scripts/sbom.py ./
# pip check: nothing is missing and nothing too old. The bill of materials is of what is there then.
RUN /opt/build/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/gpumon/bin/python -m pip install --no-cache-dir --no-index --no-deps dist/*.whl \
    && /opt/gpumon/bin/python -m pip check \
    && /opt/gpumon/bin/python sbom.py >sbom.cdx.json \
    && /opt/gpumon/bin/python -m pip uninstall --yes pip setuptools

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpumon" \
      org.opencontainers.image.description="Tells you why a token was slow: GPU, host and inference traces on one clock." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/gpumon/gpumon" \
      org.opencontainers.image.documentation="https://github.com/gpumon/gpumon/blob/main/docs/KUBERNETES.md" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# What the base installs packages with is not wanted where nothing is installed, and would be in no bill of materials.
RUN library=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') \
    && scripts=$(python -c 'import sysconfig; print(sysconfig.get_path("scripts"))') \
    && rm -rf "$library"/ensurepip "$library"/site-packages/* "$scripts"/pip* "$scripts"/wheel*
COPY --from=build /opt/gpumon /opt/gpumon
COPY --from=build /src/LICENSE /src/sbom.cdx.json /usr/share/doc/gpumon/
# Compiled here, the base's standard library too (the base comes without .pyc files), because the file system is
# read-only where this runs: without them the start takes twice as long and 7 MB more.
# /var/lib/gpumon is the user's below, so that a named volume there is too (docker run -v gpumon:/var/lib/gpumon); a
# folder of the host, or of Kubernetes, has to be made writable for it: fsGroup 65534 for an emptyDir or a claim, chown
# for a hostPath. Where it cannot be written (a read-only file system, say) gpumon runs all the same, without flight
# recordings and with counters that begin anew; GPUMON_STATE__FOLDER= (empty) says that this is wanted.
RUN install -d -o 65534 -g 65534 -m 0700 /var/lib/gpumon \
    && python -m compileall -q -j 0 -x lib2to3 /opt/gpumon/lib \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# All GPUs, of the driver's libraries only NVML: what the NVIDIA container runtime reads.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/gpumon/bin:/usr/local/bin:/usr/bin:/bin
USER 65534:65534
EXPOSE 9450 4317 4318
# -P: no module is taken from the folder that it is started in.
ENTRYPOINT ["/opt/gpumon/bin/python", "-P", "-m", "gpumon"]
CMD ["run"]
