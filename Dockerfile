# One image for Ray head, Ray workers and the service. Building it needs no GPU and nothing but the package registry.
FROM python:3.11-slim

WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY trainers ./trainers
COPY service ./service
COPY api ./api
COPY deploy ./deploy
RUN pip install --no-cache-dir --constraint constraints.txt .

RUN useradd --create-home --uid 1000 millrace
USER millrace
WORKDIR /home/millrace
COPY --chown=millrace examples ./examples

# `docker run IMAGE` serves; `docker run IMAGE millrace run SPEC` or `... ray start ...` does the rest.
CMD ["millrace", "serve"]
