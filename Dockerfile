# One image with all three programs; the command says which one runs.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -o /out/ ./cmd/worker ./cmd/enqueue ./examples/outbound-api

# No shell, no root, and the certificates that https calls need.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/ /usr/local/bin/
EXPOSE 8080
CMD ["worker", "-h"]
