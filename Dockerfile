# An image that serves an app: docs/how-to/deploy.md says how to run it.
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
# The versions that were tested, by requirements.lock; only those that tidegate[server] needs.
RUN sed -E '/^ *(#|--hash)/d; s/ *\\$//' requirements.lock > /versions.txt \
 && pip wheel --no-cache-dir --no-deps --wheel-dir /dist . \
 && python -m venv /opt/tidegate \
 && /opt/tidegate/bin/pip install --no-cache-dir --constraint /versions.txt "$(echo /dist/tidegate-*.whl)[server]"

FROM python:3.12-slim
RUN groupadd --gid 10001 tidegate \
 && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin tidegate \
 && install --directory --owner tidegate --group tidegate --mode 0700 /data
COPY --from=build /opt/tidegate /opt/tidegate
ENV PATH=/opt/tidegate/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /app
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["tidegate", "serve"]
CMD ["--help"]
