# By digest: a tag may name another image tomorrow. Where it comes from somewhere else, say
# so with --build-arg.
ARG GO_IMAGE=golang:1.26-bookworm@sha256:116d58cbd88c1297624acc6e967a060012422bacf9930927e23fb719189c6f36

# The programs and the prober, static, built for another architecture without emulation.
FROM --platform=${BUILDPLATFORM} ${GO_IMAGE} AS agent
# The patch release that go.mod asks for, where that of the image is older.
ENV GOTOOLCHAIN=auto
WORKDIR /src
COPY go.mod go.sum ./
COPY tests/netpol/go.mod tests/netpol/
RUN go mod download
COPY cmd cmd
COPY pkg pkg
COPY tests/cluster/prober tests/cluster/prober
ARG LDFLAGS=
ARG TARGETARCH
RUN CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w $LDFLAGS" -o / ./cmd/kube-network-policies ./cmd/status-writer ./tests/cluster/prober

# The prober, for --target prober (docs/testing/prober.md).
FROM scratch AS prober
COPY --from=agent /prober /usr/bin/
ENV PATH=/usr/bin
USER 65532:65532
ENTRYPOINT ["prober"]

# The image of agents and of the status writer, two static programs, and no other file. The user is root because
# Kubernetes can give a capability (CAP_NET_ADMIN, see install.yaml) to root only:
# of another user it is lost when the container's program is executed.
FROM scratch
COPY --from=agent /kube-network-policies /status-writer /usr/bin/
ENV PATH=/usr/bin
USER 0:0
ENTRYPOINT ["kube-network-policies"]
