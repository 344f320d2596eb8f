# The image of the jobs and the API: `window`, `score`, `serve`, `up`, and the commands that read. No NVML: that is the agent's.
#   docker build -f deploy/server.Dockerfile -t isotach-server .
# Runs as nobody, writes nothing but /var/lib/isotach: fit for a read-only root. There is no HEALTHCHECK, since the roles
# differ: only `serve` and `up` answer /healthz and /readyz; docker-compose.yml and the Helm chart ask those that do.
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
    && /opt/isotach/bin/pip install --no-cache-dir "$(echo /dist/isotach-*.whl)[server]" \
    && install -d -o 65534 -g 65534 /state

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/isotach /opt/isotach
COPY --from=build --chown=65534:65534 /state /var/lib/isotach
ENV PATH=/opt/isotach/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/isotach
USER 65534:65534
ENTRYPOINT ["isotach"]
CMD ["--help"]
