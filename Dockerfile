# syntax=docker/dockerfile:1
# The operator: one static program and the public certificate authorities, nothing else.
#
#   docker buildx build --platform linux/amd64,linux/arm64 .
#
# It is compiled on the platform of the builder for the one that is asked for, so nothing is emulated.

FROM --platform=$BUILDPLATFORM rust:1.95.0-slim-bookworm AS build
# Zig is the C compiler and the linker for every platform.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/zig \
    && /opt/zig/bin/pip install --no-cache-dir cargo-zigbuild==0.24.0 ziglang==0.17.1
ENV PATH=/opt/zig/bin:$PATH
WORKDIR /source
# The toolchain alone, so that a change of the source does not load it again.
COPY rust-toolchain.toml .
RUN rustup target add x86_64-unknown-linux-musl aarch64-unknown-linux-musl
COPY . .
ARG TARGETARCH
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target,id=target-$TARGETARCH \
    case "$TARGETARCH" in \
        amd64) target=x86_64-unknown-linux-musl ;; \
        arm64) target=aarch64-unknown-linux-musl ;; \
        *) echo "no image is built for $TARGETARCH" >&2; exit 1 ;; \
    esac \
    && cargo zigbuild --release --locked --bin boundary-operator --target "$target" \
    && install -D "target/$target/release/boundary-operator" /image/boundary-operator

FROM scratch
# For members whose certificates are of a public authority, and for collectors of traces.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /image/boundary-operator /boundary-operator
# As in the chart. A number, so that Kubernetes sees that it is not root.
USER 65532:65532
EXPOSE 8080 8443
ENTRYPOINT ["/boundary-operator"]
