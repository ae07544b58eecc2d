# A server of one model and its prompts:
#   docker build -t softprompts .
#   docker run --init --stop-timeout 40 -p 127.0.0.1:8000:8000 \
#     -v ./library:/library:ro -v ./keys.txt:/keys.txt:ro \
#     softprompts --library /library --model google/flan-t5-small --api-keys /keys.txt
# (--stop-timeout is longer than the server's --grace.) For machines of a Ray cluster, build with
#   --build-arg EXTRAS=serve,ray
# and for a smaller image without CUDA, with
#   --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
FROM python:3.12-slim

ARG EXTRAS=serve
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]" && rm -rf /src/*

# Models are downloaded to /models; mount a folder there to keep them.
ENV HF_HOME=/models PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 softprompts && install -d -o softprompts /models
USER softprompts
WORKDIR /home/softprompts

EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
ENTRYPOINT ["softprompts", "serve", "--host", "0.0.0.0"]
CMD ["--library", "/library"]
