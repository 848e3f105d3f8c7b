# The agent, static.
FROM golang:1.26-bookworm AS agent
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
RUN CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /kube-network-policies ./cmd/kube-network-policies

# nft, the only other program the agent runs, with the libraries it is linked to.
FROM debian:bookworm-slim AS nft
RUN apt-get update && apt-get install --yes --no-install-recommends nftables
RUN for file in /usr/sbin/nft $(ldd /usr/sbin/nft | grep -o '/[^ ]*'); do install -D "$file" "/root-of-image$file"; done

# Nothing else: no shell, no package manager, about 40 MB. The user is root because
# Kubernetes can give a capability (CAP_NET_ADMIN, see install.yaml) to root only:
# of another user it is lost when the container's program is executed.
FROM scratch
COPY --from=nft /root-of-image /
COPY --from=agent /kube-network-policies /usr/bin/
ENV PATH=/usr/sbin:/usr/bin
USER 0:0
ENTRYPOINT ["kube-network-policies"]
