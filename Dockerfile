# zprobe on a Python, for a user that is not root. Torch and engines are not in it: derive an image from this
# one and install them there, or mount an environment and name it with --python.
#
#   cargo xtask dist
#   docker build --tag zprobe .
#   docker run --rm zprobe doctor
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

RUN useradd --create-home --uid 1000 zprobe \
    && python -m venv /opt/zprobe \
    && chown -R zprobe:zprobe /opt/zprobe
USER zprobe
ENV VIRTUAL_ENV=/opt/zprobe PATH=/opt/zprobe/bin:$PATH

# The wheel of `cargo xtask dist` for this kind of machine, and nothing from elsewhere.
RUN --mount=type=bind,source=target/dist,target=/dist \
    pip install --no-cache-dir --no-index --no-deps --find-links /dist zprobe

# Runs are recorded in .zprobe of the working directory.
WORKDIR /home/zprobe
ENTRYPOINT ["zprobe"]
CMD ["--help"]
