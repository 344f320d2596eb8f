# The image of the agent: what runs on, or beside, GPU nodes. Holds nothing of the server (no Polars, DuckDB, FastAPI).
#   docker build -f deploy/agent.Dockerfile -t isotach-agent .
# NVML comes from the host: the NVIDIA container toolkit puts the driver's libnvidia-ml.so.1 into the container
# (`--gpus all`, or runtimeClassName nvidia). Runs as nobody, writes nothing but /var/lib/isotach: fit for a read-only root.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY telemetry telemetry
COPY collectors collectors
COPY streams streams
COPY analytics analytics
COPY integrations integrations
COPY api api
COPY isotach isotach
# The constraints hold for what builds the wheel, too.
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist . \
    && python -m venv /opt/isotach \
    && /opt/isotach/bin/pip install --no-cache-dir "$(echo /dist/isotach-*.whl)[agent]" \
    && install -d -o 65534 -g 65534 /state

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/isotach /opt/isotach
COPY --from=build --chown=65534:65534 /state /var/lib/isotach
# `utility` is NVML and nothing more; the path is where Google's nodes keep the driver.
ENV PATH=/opt/isotach/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64
USER 65534:65534
ENTRYPOINT ["isotach"]
CMD ["agent"]
