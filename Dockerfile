# deepspeed.c for the CPU. tests/container makes the same without docker.
#
#     docker build -t deepspeed.c .
#     docker run --rm -v "$PWD/data:/data" deepspeed.c cifar10_tutorial --data /data
#
# The folder of the data set is mounted; cifar10_tutorial --sample needs none.
FROM debian:bookworm-slim AS build
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    gcc libc6-dev cmake ninja-build pkg-config dpkg-dev file \
    libjansson-dev libcurl4-openssl-dev libarchive-dev libssl-dev libpcre2-dev libpng-dev libutf8proc-dev \
    zlib1g-dev
COPY . /src
RUN cmake -S /src -B /build -G Ninja -DDS_TESTS=OFF -DDS_BENCH=OFF && cmake --build /build && \
    cpack --config /build/CPackConfig.cmake -G DEB -B /packages

FROM debian:bookworm-slim
RUN --mount=type=bind,from=build,source=/packages,target=/packages \
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    /packages/deepspeed_*.deb /packages/deepspeed-sample_*.deb && rm -rf /var/lib/apt/lists/*
WORKDIR /work
CMD ["deepspeed", "--help"]
