# One image for Ray's head, Ray's workers and the service. It is built without a GPU, and for GPUs without one too.
FROM python:3.11-slim

# cuda: PyTorch as the package registry has it, which computes on CPUs as well. cpu: PyTorch's own build without CUDA, a
# fifth of the size.
ARG DEVICE=cuda
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu

WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY trainers ./trainers
COPY service ./service
COPY api ./api
COPY deploy ./deploy
RUN case "$DEVICE" in cuda) ;; cpu) export PIP_EXTRA_INDEX_URL="$CPU_INDEX" ;; *) echo "DEVICE is cuda or cpu" >&2; exit 2 ;; esac \
    && pip install --no-cache-dir --constraint constraints.txt '.[mlflow,oidc,onnx,postgres,s3]'

# What the service keeps, and the runs: the same folder in every container.
RUN useradd --create-home --uid 1000 millrace && install --directory --owner millrace --mode 700 /var/lib/millrace
VOLUME /var/lib/millrace
ENV MILLRACE_STATE_DIR=/var/lib/millrace RAY_USAGE_STATS_ENABLED=0 PYTHONUNBUFFERED=1
USER millrace
WORKDIR /home/millrace
COPY --chown=millrace examples ./examples

# Ray's head, Ray's nodes' metrics, the service.
EXPOSE 6379 8080 8466

# `docker run IMAGE` serves; `docker run IMAGE millrace run SPEC` or `... ray start ...` does the rest.
CMD ["millrace", "serve"]
