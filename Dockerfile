# Tollgate as an image: built from this checkout, run as nobody, with nothing beside the program.
FROM rust:1.95-bookworm AS build
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY crates crates
RUN cargo build --release --locked -p tollgate-server

FROM debian:bookworm-slim
COPY --from=build /build/target/release/tollgate /usr/local/bin/tollgate
USER 65532:65532
EXPOSE 8080
# Inside a container the address is the container's own: publish the port only where everybody is trusted.
ENV TOLLGATE_HTTP=0.0.0.0:8080 TOLLGATE_INSECURE=true
ENTRYPOINT ["/usr/local/bin/tollgate"]
CMD ["serve"]
