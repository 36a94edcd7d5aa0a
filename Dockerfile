# The command dlock alone, for COPY --from=dlock /dlock /usr/local/bin/ in other images, and for
# dlock ls, show, watch and doctor. It has no shell.
FROM --platform=$BUILDPLATFORM golang:1.26-alpine AS build
RUN apk add --no-cache ca-certificates git
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH
# auto: an archive of the source has no history to stamp.
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=auto -ldflags='-s -w -buildid=' -o /root-fs/dlock ./cmd/dlock
RUN mkdir -p /root-fs/etc/ssl/certs /root-fs/tmp && chmod 1777 /root-fs/tmp \
 && cp /etc/ssl/certs/ca-certificates.crt /root-fs/etc/ssl/certs/ \
 && echo 'nonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin' >/root-fs/etc/passwd

FROM scratch
COPY --from=build /root-fs/ /
USER 65532:65532
ENTRYPOINT ["/dlock"]
CMD ["help"]
