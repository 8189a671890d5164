# Tollgate as an image: built from this checkout, run as nobody, with nothing beside the program.
FROM rust:1.95-bookworm AS build
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY e2e e2e
COPY examples examples
COPY xtask xtask
RUN cargo build --profile dist --locked -p tollgate-server

FROM debian:bookworm-slim
COPY --from=build /build/target/dist/tollgate /usr/local/bin/tollgate
# For a volume, with TOLLGATE_STATE_DIR=/var/lib/tollgate: counters then survive the container.
RUN install -d -o 65532 -g 65532 -m 0700 /var/lib/tollgate
USER 65532:65532
EXPOSE 8080 8081 6380
# HTTP, gRPC and RESP can be reached from outside, so the operator must choose who may ask, or the server does not start:
#   TOLLGATE_AUTH_TOKEN_FILE (or TOLLGATE_AUTH_TOKEN)   whoever brings the token
#   TOLLGATE_TLS_CLIENT_CA, with TOLLGATE_TLS_CERT and TOLLGATE_TLS_KEY   whoever shows a certificate
#   TOLLGATE_INSECURE set to true   everybody, on a network where everybody is trusted
ENV TOLLGATE_HTTP=0.0.0.0:8080 TOLLGATE_GRPC=0.0.0.0:8081 TOLLGATE_RESP=0.0.0.0:6380
ENTRYPOINT ["/usr/local/bin/tollgate"]
CMD ["serve"]
