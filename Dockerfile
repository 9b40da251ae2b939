# A VMMC node in a container.
#
#   docker build -t vmmc .
#   docker run --rm --network host -v vmmc-key:/root/.config/vmmc vmmc
#
# Control sockets are abstract, so processes reach the node when they share its network namespace (--network host, or --network container:NAME) and its user id. Memory
# passes as descriptors, so they need not share anything else.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package vmmc-cli --bin vmmc

FROM debian:bookworm-slim
COPY --from=build /src/target/release/vmmc /usr/local/bin/vmmc
EXPOSE 4791/udp
# docker stop sends SIGTERM: processes and peers are told.
ENTRYPOINT ["vmmc"]
CMD ["node", "run", "--name", "default", "--listen", "0.0.0.0:4791"]
