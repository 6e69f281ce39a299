# adawac on a CPU or, with `docker run --gpus all`, on an NVIDIA GPU.
#
#   docker build --tag adawac .
#   docker build --tag adawac:cpu --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .   # without CUDA
#   docker run --rm --gpus all --shm-size 8g --user "$(id -u):$(id -g)" --volume "$PWD:/data" adawac train store --out run
FROM python:3.12-slim
# Triton compiles its launchers with a C compiler when a kernel is first called.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# Where torch's wheels come from. Those of PyPI bring CUDA along.
ARG TORCH_INDEX=https://pypi.org/simple
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch torchvision
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# hadolint ignore=DL3013
RUN pip install --no-cache-dir '.[dicom,nrrd,pictures,export,track]'
# Any user may run it, also one without a name or a home: caches go to /tmp.
ENV HOME=/tmp USER=adawac
RUN mkdir --mode 1777 /data
USER 1000:1000
WORKDIR /data
ENTRYPOINT ["adawac"]
CMD ["--help"]
