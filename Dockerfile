# A VMMC node in a container.
#
#   docker build -t vmmc .
#   docker run --rm --network host -v vmmc-key:/root/.config/vmmc vmmc
#
# Control sockets are abstract, so processes reach the node when they share its network namespace
# (--network host, or --network container:NAME) and its user id. Memory passes as descriptors, so
# they need not share anything else. `cargo xtask check first-hour` runs what stands here, without
# the container.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo xtask install --prefix /usr/local --destdir /stage

FROM debian:bookworm-slim
COPY --from=build /stage/usr/local/bin/vmmc /usr/local/bin/vmmc
# The library that `vmmc exec` loads into programs of the container.
COPY --from=build /stage/usr/local/lib/vmmc /usr/local/lib/vmmc
EXPOSE 4791/udp
# docker stop sends SIGTERM: processes and peers are told.
ENTRYPOINT ["vmmc"]
CMD ["node", "run", "--name", "default", "--listen", "0.0.0.0:4791"]
